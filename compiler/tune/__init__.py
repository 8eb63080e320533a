"""Compiles, tunes and compares whole networks: puts the graph passes, the search and the measuring together."""
