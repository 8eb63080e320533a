"""In: a search task, a cost model and measured results. Out: the next programs to measure. Always: no I/O, and the same
seed and results give the same programs.
"""
