"""The structure of a compute graph as a string, without sizes, by which similar tasks are grouped.

Two convolutions that differ in extents and channels have the same structure; with another stride, fused operator or
data type they differ.
"""

import re

from retune.compiler.schedule.dag import ComputeDAG

LARGEST_KEPT = 4
"""Numbers up to this are strides, dilations and the like, and tell structures apart; larger numbers are sizes."""

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


def structure_of(dag: ComputeDAG) -> str:
    """The graph's text without numbers of names and sizes; element types of inputs and outputs first."""
    types = ",".join(tensor.dtype for tensor in (*dag.inputs, *dag.outputs))
    lines = [re.sub(r"\[[\d, ]*\]$", "[]", line) for line in str(dag).splitlines()]
    return f"{types}\n" + "\n".join(_NUMBER.sub(_without_size, line) for line in lines)


def _without_size(number: re.Match[str]) -> str:
    return number.group() if int(number.group()) <= LARGEST_KEPT else "#"
