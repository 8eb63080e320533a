"""In: an ONNX model. Out: a `Graph` in our own operators. Always: all that cannot be converted is reported at once."""
