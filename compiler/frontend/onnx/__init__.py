"""ONNX importer: converts a model into a `Graph` of Retune operators and reports every unsupported node at once."""
