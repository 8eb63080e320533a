"""Passes over the loop IR of a kernel, each closer to the machine: a pass changes how a kernel computes, never what.

Each pass is one module with one public function.
"""

from collections.abc import Callable

from retune.compiler.ir.stmt import LoopFunction

LoopPass = Callable[[LoopFunction], LoopFunction]
"""A rewrite of one kernel, or `functools.partial` of such a function with the traits of a target.

Raises: LoweringError for a schedule that the target cannot run.
"""


def pass_name(loop_pass: LoopPass) -> str:
    """The name of a pass in dumps and errors: that of its module."""
    module: str = getattr(loop_pass, "func", loop_pass).__module__
    return module.rpartition(".")[2].replace("_", "-")
