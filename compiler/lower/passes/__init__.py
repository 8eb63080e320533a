"""Passes over the loop IR of a kernel, each closer to the machine: a pass changes how a kernel computes, never what.

Each pass is one module with a frozen value that has a `name` and an `apply`.
"""

from typing import Protocol

from retune.compiler.ir.stmt import LoopFunction


class LoopPass(Protocol):
    """A named rewrite of one kernel."""

    @property
    def name(self) -> str:
        """The name of the pass in dumps and errors."""

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel after the pass. Raises: LoweringError for a schedule that the target cannot run."""
