"""Training: a model's forward pass, loss, gradients and update as one ONNX model, and the loop that keeps its state on the device."""
