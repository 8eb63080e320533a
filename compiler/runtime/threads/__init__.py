"""Threads of parallel regions: their runtime, their CPUs, and what else uses these."""
