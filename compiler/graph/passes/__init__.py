"""Graph passes. Each maps a verified graph to an equivalent verified graph with the same inputs and output names."""
