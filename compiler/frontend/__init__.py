"""In: the name of a network of the zoo, or an ONNX file. Out: a `Graph`. Always: `onnx` is imported nowhere else."""
