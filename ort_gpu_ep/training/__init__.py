"""Training: a model's forward pass, loss, gradients and update as one ONNX model, and the loop that keeps its state on
the device.

    from ort_gpu_ep.training import Adam, Trainer, cosine
    trainer = Trainer("model.onnx", loss="cross_entropy", optimizer=Adam(cosine(1e-3, 2000)), trainable=["head.*"])
    trainer.fit(x, y, epochs=5, batch=32); trainer.export("tuned.onnx")
"""

from __future__ import annotations

from ort_gpu_ep.training.admm import Admm
from ort_gpu_ep.training.engine import Loss
from ort_gpu_ep.training.optimizers import SGD, Adam, AdamW, Optimizer
from ort_gpu_ep.training.schedules import Schedule, constant, cosine, step_decay, with_warmup
from ort_gpu_ep.training.step import TrainingStep, make_training_step
from ort_gpu_ep.training.trainer import Progress, Trainer

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Admm",
    "Loss",
    "Optimizer",
    "Progress",
    "Schedule",
    "Trainer",
    "TrainingStep",
    "constant",
    "cosine",
    "make_training_step",
    "step_decay",
    "with_warmup",
]
