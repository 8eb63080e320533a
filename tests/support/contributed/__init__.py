"""Random nodes of the operators that ONNX Runtime adds to ONNX's, and what ONNX Runtime and Retune compute for them."""
