"""The interface of a loop pass.

A pass changes how a kernel computes, never what.
"""

from typing import Protocol

from retune.compiler.ir.stmt import LoopFunction


class LoopPass(Protocol):
    """A named rewrite of one kernel."""

    @property
    def name(self) -> str:
        """What the pass is called in dumps and errors."""

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel after the pass.

        Raises: LoweringError when the schedule asks for what the target cannot do.
        """
