"""Lowers scheduled states to loop IR, and runs the passes over it."""
