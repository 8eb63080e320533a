"""In: a verified graph. Out: a verified graph that computes the same. Always: inputs and names of outputs stay."""
