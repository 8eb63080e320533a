"""Converters of ONNX operators, one module a family."""
