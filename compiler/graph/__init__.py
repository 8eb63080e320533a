"""Graph IR of networks, its passes, and the partition into kernels and tuning tasks. Graphs are immutable."""
