"""Importers that turn ONNX models, and the networks of the built-in zoo, into a `Graph`; only they import `onnx`."""
