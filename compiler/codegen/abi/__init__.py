"""Entries of compiled code: the TVM FFI, operators of ONNX Runtime, checks of the CPU."""
