"""Builds and times candidate programs in worker processes, and returns the results as records."""
