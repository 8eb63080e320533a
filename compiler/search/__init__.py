"""The search: proposes the next programs to measure.

It does no I/O; the same seed and results give the same programs.
"""
