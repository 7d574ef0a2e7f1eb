"""Where the GPU's values differ from those of ONNX Runtime's CPU provider, and which node it comes from."""
