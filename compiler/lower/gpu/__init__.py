"""Lowers states whose loops are bound to blocks and threads to GPU kernels in loop IR."""
