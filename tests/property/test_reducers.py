"""Custom reductions go through every transform step and compute what their definition says."""

import contextlib
import pickle
from collections.abc import Callable

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import DefinitionError, LoweringError
from retune.compiler.ir.expr import Expr
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Fuse,
    Pragma,
    Reorder,
    Rfactor,
    Split,
    Step,
    StorageAlign,
)
from retune.compiler.te.evaluate import evaluate
from tests.support.property.checks import check
from tests.support.property.wild import wild_steps

JOINS: dict[str, tuple[Callable[[Expr, Expr], Expr], float]] = {
    "growth": (lambda x, y: x + (y + x * y), 0.0),
    "growth turned": (lambda x, y: (x * y + y) + x, 0.0),
    "smaller": (lambda x, y: te.if_then_else(x < y, x, y), np.inf),
    "hypotenuse": (lambda x, y: te.sqrt(x * x + y * y), 0.0),
    "product": (lambda x, y: x * y, 1.0),
}


def rows(name: str, n: int = 6, m: int = 11, depth: int = 10) -> ComputeDAG:
    join, identity = JOINS[name]
    own = te.comm_reducer(join, identity, name)
    x, w = te.placeholder((n, depth), name="x"), te.placeholder((depth, m), name="w")
    k = te.reduce_axis(depth, "k")
    joined = te.compute((n, m), lambda i, j: own(te.abs(x[i, k] * w[k, j]) * 0.25, k), "joined")
    return ComputeDAG([x, w, te.compute((n, m), lambda i, j: joined[i, j] + 1.0, "moved")])


SCHEDULES: dict[str, tuple[Step, ...]] = {
    "naive": (),
    "tiled": (
        Split(2, 0, 6, (4,)),
        Split(2, 2, 11, (4,)),
        Split(2, 4, 10, (3,)),
        Reorder(2, (0, 2, 4, 1, 5, 3)),
        Annotate(2, 5, Annotation.VECTORIZE),
        Pragma(2, 0, "auto_unroll_max_step$64"),
    ),
    "register tile": (Reorder(2, (2, 0, 1)), Annotate(2, 2, Annotation.VECTORIZE)),
    "attached": (Split(3, 0, 6, (2,)), ComputeAt(2, 3, 0), Annotate(2, 1, Annotation.VECTORIZE)),
    "caches": (CacheWrite(2), CacheRead(0, "local", (2,)), ComputeAt(1, 3, 0), ComputeAt(3, 4, 1)),
    "factored": (
        Split(2, 2, 10, (4,)),
        Rfactor(2, 3, 2),
        StorageAlign(2, 1, 8, 1),
        Annotate(2, 2, Annotation.VECTORIZE),
        Fuse(3, (0, 1)),
        Annotate(3, 0, Annotation.PARALLEL),
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", JOINS)
def test_custom_reducers_compute_the_definition_under_chosen_schedules(name: str, schedule: str) -> None:
    check(rows(name), SCHEDULES[schedule], np.random.default_rng(0), threads=2)


@pytest.mark.parametrize("seed", range(20))
def test_random_schedules_of_custom_reducers_compute_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dag = rows(list(JOINS)[seed % len(JOINS)], *(int(rng.integers(1, 14)) for _ in range(3)))
    with contextlib.suppress(LoweringError):  # a fusion of loops of both kinds, say: refused, never miscompiled
        check(dag, wild_steps(dag, rng), rng, threads=1 + seed % 2)


def test_evaluate_applies_a_custom_reducer() -> None:
    x = te.placeholder((3, 4), name="x")
    i, k = te.reduce_axis(3, "i"), te.reduce_axis(4, "k")
    growth = te.comm_reducer(*JOINS["growth"])
    dag = ComputeDAG([x, te.compute((), lambda: growth(x[i, k], [i, k]), "y")])
    values = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
    (found,) = evaluate(dag.outputs, {dag.inputs[0]: values})
    np.testing.assert_allclose(found, np.prod(1 + values.astype("float64")) - 1, rtol=1e-6)
    assert str(dag).endswith("y() reduce<(x + (y + (x * y)))>= x[i, k]")
    assert dag.flop_count == 12 * 3
    assert str(pickle.loads(pickle.dumps(dag))) == str(dag)


def test_the_identity_may_depend_on_the_type() -> None:
    largest = te.comm_reducer(lambda x, y: te.maximum(x, y), lambda dtype: np.iinfo(dtype).min, "largest")
    x = te.placeholder((5,), "int32", "x")
    k = te.reduce_axis(5, "k")
    check(
        ComputeDAG([x, te.compute((), lambda: largest(x[k], k), "y")]),
        (Split(1, 0, 5, (2,)), Rfactor(1, 1, 0)),
        np.random.default_rng(0),
        threads=1,
    )


def test_reducer_rejects_wrong_types_and_axes() -> None:
    x = te.placeholder((5,), name="x")
    with pytest.raises(DefinitionError, match="joining two values of float32 gives bool"):
        te.comm_reducer(lambda a, b: a < b, 0)(x[te.reduce_axis(5, "k")], te.reduce_axis(5, "k"))
    with pytest.raises(DefinitionError, match="is not a reduce axis"):
        te.compute((5,), lambda i: te.comm_reducer(lambda a, b: a + b, 0)(x[i], i), "y")
