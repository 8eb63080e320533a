"""Partition of a graph into kernels and tuning tasks, and the plan that runs them."""
