"""Threads of parallel regions: the OpenMP runtime, their CPUs, and contention by other processes."""
