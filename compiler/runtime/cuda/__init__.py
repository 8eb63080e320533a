"""The CUDA driver, arrays and kernels on NVIDIA GPUs."""
