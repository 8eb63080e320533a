"""Computations without axes go through every transform step and compute what their definition says."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    ComputeRoot,
    FollowFusedSplit,
    FollowSplit,
    Fuse,
    Pragma,
    Reorder,
    Rfactor,
    Split,
    Step,
    StorageAlign,
)
from tests.support.property.checks import check


def total() -> ComputeDAG:
    """The largest element 1, its double 2, and everything by it 3."""
    x = te.placeholder((5, 9), name="x")
    i, j = te.reduce_axis(5, "i"), te.reduce_axis(9, "j")
    top = te.compute((), lambda: te.max(x[i, j], [i, j]), "top")
    twice = te.compute((), lambda: top[()] * 2.0, "twice")
    return ComputeDAG([x, te.compute((5, 9), lambda a, b: x[a, b] + twice[()], "moved")])


def single(reduce: bool) -> ComputeDAG:
    x = te.placeholder((7,), name="x")
    k = te.reduce_axis(7, "k")
    return ComputeDAG([x, te.compute((), lambda: te.sum(x[k], k) if reduce else x[3] * 2.0, "y")])


PROGRAMS: dict[str, tuple[Step, ...]] = {
    "naive": (),
    "AN FU": (
        Fuse(1, ()),
        Annotate(1, 0, Annotation.PARALLEL),
        Fuse(2, ()),
        Annotate(2, 0, Annotation.VECTORIZE),
        Annotate(1, 1, Annotation.UNROLL),
    ),
    "SP RE FU": (Split(1, 0, 5, (2,)), Split(1, 2, 9, (4,)), Reorder(1, (2, 0, 3, 1)), Fuse(1, (0, 1))),
    "FSP FFSP": (Split(3, 1, 9, (2, 2)), FollowSplit(1, 1, 0, 2), FollowFusedSplit(1, 0, (0, 0), 0)),
    "PR": (Pragma(1, 0, "auto_unroll_max_step$64"), Pragma(2, 0, "auto_unroll_max_step$16")),
    "CI": (ComputeInline(2), Annotate(3, 0, Annotation.PARALLEL)),
    "CA": (ComputeAt(2, 3, 1), ComputeAt(1, 2 + 1, 0)),
    "CA in a scalar": (Fuse(2, ()), ComputeAt(1, 2, 0)),
    "CR": (ComputeAt(2, 3, 1), ComputeRoot(2)),
    "CHW": (CacheWrite(1), Split(1, 1, 9, (4,)), Fuse(2, ()), ComputeAt(1, 2, 0)),
    "CHW of a scalar": (CacheWrite(2), ComputeAt(2, 4, 0), ComputeInline(3)),
    "CHR": (CacheRead(0, "local", (1,)), ComputeAt(1, 2, 0), CacheRead(2, "local", (3,)), CacheRead(4, "shared", (5,))),
    "CHR attached": (CacheRead(2, "local", (3,)), ComputeAt(3, 4, 1)),
    "RF": (Split(1, 1, 9, (4,)), Rfactor(1, 2, 0), Annotate(1, 0, Annotation.VECTORIZE)),
    "RF SA": (Rfactor(1, 0, 0), StorageAlign(1, 0, 8, 3), Annotate(1, 0, Annotation.PARALLEL), Fuse(2, ())),
    "FU SP RF": (Fuse(1, (0, 1)), Split(1, 0, 45, (7,)), Rfactor(1, 0, 0), ComputeAt(1, 2, 0)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_scalar_through_every_step(name: str) -> None:
    check(total(), PROGRAMS[name], np.random.default_rng(0), threads=2)


@pytest.mark.parametrize("reduce", [False, True])
@pytest.mark.parametrize(
    "steps",
    [
        (),
        (Fuse(1, ()), Annotate(1, 0, Annotation.PARALLEL)),
        (CacheWrite(1), Fuse(2, ()), ComputeAt(1, 2, 0), Annotate(2, 0, Annotation.PARALLEL)),
        (CacheRead(0, "local", (1,)), Fuse(2, ()), ComputeAt(1, 2, 0)),
    ],
)
def test_a_kernel_whose_only_output_is_a_scalar(steps: tuple[Step, ...], reduce: bool) -> None:
    check(single(reduce), steps, np.random.default_rng(0), threads=2)


def test_a_scalar_has_no_row_to_align() -> None:
    with pytest.raises(ScheduleError, match="no dimension for the loop i"):
        replay(total(), [StorageAlign(1, 0, 8, 0)])
    with pytest.raises(ScheduleError, match="only for a stage without spatial loops"):
        replay(total(), [Fuse(1, ()), Fuse(1, ())])
