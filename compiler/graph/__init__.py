"""In: an imported network. Out: an optimised graph, cut into kernels and tasks. Always: graphs are immutable."""
