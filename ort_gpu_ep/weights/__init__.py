"""Compressed weights inside an ONNX file: how they are stored, and functions that decode them by standard operators."""
