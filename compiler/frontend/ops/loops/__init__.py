"""Converters of loops and conditions: ONNX control flow, and recurrent layers."""
