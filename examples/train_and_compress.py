"""Trains a small convolutional network on scikit-learn's handwritten digits, shows its accuracy by epoch, and
compresses it.

Needs `pip install '.[all]'`.
usage: PYTHONPATH=. python examples/train_and_compress.py
"""

import numpy as np
import onnx
import onnx.parser

import ort_gpu_ep as ort
from models import datasets
from ort_gpu_ep.compression import compress
from ort_gpu_ep.training import Adam, Trainer

MODEL = """<ir_version: 10, opset_import: ["": 21]>
digits (float[N, 1, 8, 8] image) => (float[N, 10] scores) {
    c = Conv <pads = [1, 1, 1, 1]> (image, filters) r = Relu(c) p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
    f = Flatten(p) h = Gemm(f, w1, b1) a = Relu(h) scores = Gemm(a, w2, b2)
}"""

rng = np.random.default_rng(0)
model = onnx.parser.parse_model(MODEL)
for name, shape in {"filters": (16, 1, 3, 3), "w1": (256, 64), "b1": (64,), "w2": (64, 10), "b2": (10,)}.items():
    scale = 0.0 if name.startswith("b") else (2 / np.prod(shape[1:] if name == "filters" else shape[:1])) ** 0.5
    model.graph.initializer.append(
        onnx.numpy_helper.from_array((scale * rng.standard_normal(shape)).astype(np.float32), name)
    )

train, test = datasets.digits().split(0.2)
trainer = Trainer(model, loss="cross_entropy", optimizer=Adam(2e-3), options={"placement": "gpu"})
for epoch in range(1, 6):
    loss = trainer.fit(train.x, train.y, epochs=1, batch=64)[-1]["loss"]
    accuracy = trainer.evaluate(test.x, test.y)["accuracy"]
    print(f"epoch {epoch}: loss {loss:.3f}, accuracy {accuracy:.1%} {'#' * round(40 * accuracy)}")

trainer.export("digits.onnx")
for line in compress("digits.onnx", "digits-small.onnx", "int8", calibrate={"image": test.x}, labels=test.y).lines():
    print(line)

session = ort.InferenceSession("digits-small.onnx", provider_options={"placement": "gpu"})
image = test.x[:1]
for row in image[0, 0]:
    print("".join(" .:-=+*#%@"[round(9 * float(pixel))] * 2 for pixel in row))
print("this is a", int(session.run(None, {"image": image})[0].argmax()), "- the label says", int(test.y[0]))
