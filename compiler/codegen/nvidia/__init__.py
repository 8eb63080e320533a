"""Code generation for NVIDIA GPUs: LLVM text, PTX, tensor cores."""
