"""Builds and times candidate programs in worker processes, and describes what came of it as records."""
