"""Parts of an ONNX model that another engine computes."""
