"""Compressed weights inside an ONNX file: how they are stored, and the functions that say so in standard operators."""
