"""Loop IR of kernels: expressions, statements, index algebra and simplification."""
