"""Steps of kernels with symbolic extents: sizes of blocks, and the sizes of calls that a program is for.

Stages and axes are those of the computation without its schedule, with neighboring parallel axes joined, see
`schedule/axis_classes.py`; reduce axes are numbered after the others. A kernel may have several programs:

    [BL …] steps of a full block, SL limit, [BL …] steps of a full block, SL limit, [BL …] steps of a full block

Each is for calls that no earlier limit admits. Sizes of blocks and a schedule that are not there are the default.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps.base import Step


@dataclass(frozen=True, slots=True)
class _OfKernel(Step):
    """A step of a kernel with symbolic extents, which makes no state of its computation."""

    def apply(self, state: State) -> State:
        """Raises: ScheduleError; a program of fixed extents has no such steps."""
        raise ScheduleError(
            f"{state.stage(self.stage).op.name}: the step {self.tag} is for symbolic extents; remove it"
        )


@dataclass(frozen=True, slots=True)
class Block(_OfKernel):
    """A full block has `points` points along an axis."""

    tag: ClassVar[str] = "BL"

    iter: int
    points: int


@dataclass(frozen=True, slots=True)
class SizeLimit(_OfKernel):
    """The program before this step is for calls with at most `most` points along an axis."""

    tag: ClassVar[str] = "SL"

    iter: int
    most: int


def programs_of(steps: Sequence[Step]) -> list[tuple[tuple[Step, ...], SizeLimit | None]]:
    """The programs of a kernel, and the limit of each but the last."""
    programs: list[tuple[tuple[Step, ...], SizeLimit | None]] = []
    first = 0
    for number, step in enumerate(steps):
        if isinstance(step, SizeLimit):
            programs.append((tuple(steps[first:number]), step))
            first = number + 1
    return [*programs, (tuple(steps[first:]), None)]
