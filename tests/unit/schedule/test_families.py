"""Many programs at once have the bounds, accesses and features of each of them alone."""

from collections.abc import Callable

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import LoweringError, ScheduleError
from retune.compiler.core.target import HardwareParams
from retune.compiler.lower.pipeline import lower
from retune.compiler.model.features.extract import extract
from retune.compiler.schedule.choices import choices_of
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Number, replay
from retune.compiler.schedule.statements import Access, statement_nests
from retune.compiler.schedule.steps import (
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    FollowFusedSplit,
    Fuse,
    Reorder,
    Rfactor,
    Split,
    Step,
)

LENGTHS = np.array([1, 4, 16, 64], np.int64)


def matmul() -> ComputeDAG:
    a, b = te.placeholder((8, 64), name="A"), te.placeholder((64, 16), name="B")
    k = te.reduce_axis(64, "k")
    c = te.compute((8, 16), lambda i, j: te.sum(a[i, k] * b[k, j], k), "C")
    return ComputeDAG([a, b, te.compute((8, 16), lambda i, j: te.maximum(c[i, j], 0.0), "D")])


def square() -> ComputeDAG:
    x = te.placeholder((8, 8, 4), name="x")
    p, q = te.reduce_axis(8, "p"), te.reduce_axis(8, "q")
    return ComputeDAG([x, te.compute((4,), lambda c: te.max(x[p, q, c], [p, q]), "top")])


PROGRAMS: dict[str, tuple[Callable[[], ComputeDAG], Callable[[Number], list[Step]]]] = {
    "outer loop": (matmul, lambda n: [Split(2, 2, 64, (n,)), Rfactor(2, 2, 2)]),
    "inner loop": (matmul, lambda n: [Split(2, 2, 64, (n,)), Rfactor(2, 3, 0)]),
    "by parts": (matmul, lambda n: [Split(2, 2, 64, (n,), False), Rfactor(2, 3, 1)]),
    "two lengths": (matmul, lambda n: [Split(2, 2, 64, (n, 1)), Rfactor(2, 3, 2)]),
    "tiled afterwards": (
        matmul,
        lambda n: [
            Split(2, 2, 64, (n,)),
            Rfactor(2, 3, 2),
            Reorder(2, (0, 2, 3, 1)),
            Split(2, 3, 16, (4,)),
            Split(3, 0, 8, (2,)),
            ComputeAt(3, 4, 0),
        ],
    ),
    "attached": (matmul, lambda n: [Split(2, 2, 64, (n,)), Rfactor(2, 2, 2), ComputeAt(2, 3, 1)]),
    "attached to the factor": (matmul, lambda n: [Split(2, 2, 64, (n,)), Rfactor(2, 3, 0), ComputeAt(2, 3, 2)]),
    "fused before": (square, lambda n: [Fuse(1, (1, 2)), Split(1, 1, 64, (n,)), Rfactor(1, 2, 1)]),
    "caches": (
        matmul,
        lambda n: [
            CacheRead(0, "local", (2,)),
            Split(3, 2, 64, (n,)),
            ComputeAt(1, 3, 2),
            FollowFusedSplit(4, 1, (1,), 0),
        ],
    ),
}


def forms(access: Access, program: int) -> list[object]:
    """An access of one program of a family, in plain numbers."""

    def one(value: Number) -> int:
        return int(np.broadcast_to(value, LENGTHS.shape)[program])

    result: list[object] = [one(extent) for extent in access.shape]
    for form in access.index:
        terms = {key: one(value) for key, value in form.terms.items() if one(value)}
        result.append((one(form.const), terms, one(form.spread)))
    return result


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_family_is_every_one_of_its_programs(name: str) -> None:
    make, steps = PROGRAMS[name]
    dag, hardware = make(), HardwareParams(2)
    state = replay(dag, steps(LENGTHS))
    family = statement_nests(state)
    features = extract(family, choices_of(state), hardware)
    assert features.shape[0] == len(LENGTHS)
    for program, length in enumerate(LENGTHS.tolist()):
        alone = replay(dag, steps(length))
        nests = statement_nests(alone)
        for one, many in zip(nests, family, strict=True):
            assert [int(np.broadcast_to(loop.extent, LENGTHS.shape)[program]) for loop in many.loops] == [
                loop.extent for loop in one.loops
            ]
            if name != "fused before":  # a quotient has no one form: the hulls differ, the features must not
                for of_one, of_many in zip((one.write, *one.reads), (many.write, *many.reads), strict=True):
                    assert forms(of_many, program) == forms(of_one, 0)
        np.testing.assert_allclose(features[program], extract(nests, choices_of(alone), hardware)[0], rtol=1e-6)


@pytest.mark.parametrize("step", [CacheWrite(2), CacheRead(2, "local", (3,)), Rfactor(2, 3, 0), ComputeInline(2)])
def test_an_operation_that_differs_between_programs_stays_as_it_is(step: Step) -> None:
    whole = [Split(2, 2, 64, (LENGTHS,)), Rfactor(2, 3, 2)]
    with pytest.raises(ScheduleError, match=r"replay one program|neither reduction nor output"):
        replay(matmul(), [*whole, step])


def test_a_family_is_no_kernel() -> None:
    state = replay(matmul(), [Split(2, 2, 64, (LENGTHS[:1],)), Rfactor(2, 3, 2)])
    with pytest.raises(LoweringError, match="one program is lowered at a time"):
        lower(state, "kernel", HardwareParams(1))
