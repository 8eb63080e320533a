"""Operations with several results go through every transform step and compute what their definition says."""

import contextlib
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.compiler import te
from retune.compiler.core.errors import LoweringError
from retune.compiler.core.target import Target
from retune.compiler.measure.record import TaskProgram
from retune.compiler.model import RandomModel
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Fuse,
    Pragma,
    Reorder,
    Rfactor,
    Split,
    Step,
    StorageAlign,
    load_steps,
)
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.te.evaluate import evaluate
from tests.support.property.checks import HARDWARE, check
from tests.support.property.wild import wild_steps


def largest_of_rows(n: int, m: int, dtype: str = "float32", index: str = "int32") -> ComputeDAG:
    """Place and value of the largest element of every row."""
    x, k = te.placeholder((n, m), dtype, "x"), te.reduce_axis(m, "k")
    place, value = te.compute((n,), lambda i: te.argmax((te.cast(index, k), x[i, k]), axis=k), "top")
    return ComputeDAG([x, place, value])


def nearest(n: int, m: int, depth: int) -> ComputeDAG:
    """Which row of `y` is nearest to every row of `x`, and how near: only the place is read further on."""
    x, y = te.placeholder((n, depth), name="x"), te.placeholder((m, depth), name="y")
    q, k = te.reduce_axis(depth, "q"), te.reduce_axis(m, "k")
    far = te.compute((n, m), lambda i, j: te.sum(te.abs(x[i, q] - y[j, q]), q), "far")
    place, _ = te.compute((n,), lambda i: te.argmin((te.cast("int32", k), far[i, k]), axis=k), "near")
    return ComputeDAG([x, y, te.compute((n,), lambda i: te.cast("float32", place[i]) * 2.0, "twice")])


def moments(n: int, m: int, depth: int) -> ComputeDAG:
    """Sum and sum of squares in one pass, both read by a reader with more axes."""
    both = te.comm_reducer(lambda x, y: (x[0] + y[0], x[1] + y[1]), lambda *_: (0.0, 0.0), "moments")
    x = te.placeholder((n, m, depth), name="x")
    k, q = te.reduce_axis(m, "k"), te.reduce_axis(depth, "q")
    total, squares = te.compute((n,), lambda i: both((x[i, k, q], x[i, k, q] * x[i, k, q]), axis=[k, q]), "moments")
    spread = te.compute((n, m), lambda i, j: squares[i] - total[i] * total[i] * (1.0 / (m * depth)) + x[i, j, 0], "out")
    return ComputeDAG([x, spread])


def extremes(n: int, m: int, window: int) -> ComputeDAG:
    """Smallest and largest of a window, of another type each; one leaves, the other one is read."""
    both = te.comm_reducer(
        lambda x, y: (te.minimum(x[0], y[0]), te.maximum(x[1], y[1])),
        lambda low, high: (te.largest(low), te.smallest(high)),
        "extremes",
    )
    x, k = te.placeholder((n, m + window - 1), "int32", "x"), te.reduce_axis(window, "k")
    low, high = te.compute(
        (n, m), lambda i, j: both((te.cast("int64", x[i, j + k]), te.cast("float32", x[i, j + k])), axis=k), "ends"
    )
    return ComputeDAG([x, low, te.compute((n, m), lambda i, j: high[i, j] + 1.0, "above")])


def parts(n: int, m: int) -> ComputeDAG:
    """Several results without a reduction, read one by one and together."""
    x = te.placeholder((n, m), name="x")
    shifted, negative, rounded = te.compute(
        (n, m), lambda i, j: (x[i, j] + 1.0, x[i, j] < 0.0, te.cast("int32", x[i, j] * 8.0)), "parts"
    )
    joined = te.compute((m, n), lambda j, i: te.if_then_else(negative[i, j], 0.0, shifted[i, j]), "joined")
    return ComputeDAG([x, joined, te.compute((n, m), lambda i, j: rounded[i, j] + rounded[i, 0], "doubled")])


COMPUTATIONS: tuple[Callable[..., ComputeDAG], ...] = (largest_of_rows, nearest, moments, extremes, parts)


def random_computation(rng: np.random.Generator) -> ComputeDAG:
    n, m, more = (int(size) for size in rng.choice([1, 2, 3, 4, 7, 8, 16, 17, 33], 3))
    match rng.integers(5):
        case 0:
            return largest_of_rows(
                n, m, str(rng.choice(["float32", "int32", "int8", "float64"])), str(rng.choice(["int32", "int64"]))
            )
        case 1:
            return nearest(n, m, min(more, 8))
        case 2:
            return moments(n, m, min(more, 8))
        case 3:
            return extremes(n, m, min(more, 8))
    return parts(n, m)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_a_random_schedule_computes_the_definition(seed: int) -> None:
    wild(seed)


@pytest.mark.slow
def test_thousands_of_random_schedules_compute_the_definition() -> None:
    for seed in range(3000):
        wild(seed)


def wild(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dag = random_computation(rng)
    with contextlib.suppress(LoweringError):
        check(dag, wild_steps(dag, rng), rng, threads=1 + seed % 2)


SCHEDULES: dict[str, tuple[Step, ...]] = {
    "naive": (),
    "cached": (CacheWrite(1), Split(1, 1, 37, (5,)), Annotate(2, 0, Annotation.VECTORIZE)),
    "vectorized": (Reorder(1, (1, 0)), Annotate(1, 1, Annotation.VECTORIZE), Pragma(1, 0, "auto_unroll_max_step$64")),
    "factored, ragged": (
        Split(1, 1, 37, (8,)),
        Rfactor(1, 2, 1),
        Reorder(1, (0, 2, 1)),
        Annotate(1, 2, Annotation.VECTORIZE),
        Annotate(1, 0, Annotation.PARALLEL),
    ),
    "factored inside": (Split(1, 1, 37, (8,)), Rfactor(1, 1, 0), ComputeAt(1, 2, 0), Annotate(2, 0, 3)),
    "factored whole": (Rfactor(1, 1, 1), StorageAlign(1, 0, 16, 4)),
    "cached and factored": (CacheWrite(1), Split(1, 1, 37, (4,)), Rfactor(1, 2, 0), CacheRead(1, "local", (2,))),
    "fused": (Split(1, 0, 21, (4,)), Fuse(1, (0, 1)), Annotate(1, 0, Annotation.PARALLEL)),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_chosen_schedule_computes_the_definition(name: str, threads: int) -> None:
    check(largest_of_rows(21, 37), SCHEDULES[name], np.random.default_rng(1), threads)


@pytest.mark.parametrize(
    "steps",
    [
        (ComputeInline(1),),
        (CacheRead(1, "local", (3,)), ComputeAt(2, 4, 0)),
        (CacheRead(1, "local", (2,)), CacheRead(1, "local", (2, 4))),
        (CacheWrite(1), ComputeAt(1, 2, 1), StorageAlign(1, 0, 8, 1)),
    ],
    ids=["inlined", "inside a reader", "read caches", "write cache"],
)
def test_results_of_which_some_are_read(steps: tuple[Step, ...]) -> None:
    check(parts(9, 12), steps, np.random.default_rng(2), 1)


@pytest.mark.parametrize("size", [(8, 40), (1, 1), (3, 17)])
@pytest.mark.parametrize("make", COMPUTATIONS, ids=lambda make: make.__name__)
def test_the_untuned_schedule_computes_the_definition(make: Callable[..., ComputeDAG], size: tuple[int, int]) -> None:
    dag = make(*size, *(() if make in (parts, largest_of_rows) else (3,)))
    check(dag, default_steps(dag), np.random.default_rng(3), 2)


@pytest.mark.parametrize(
    "dag",
    [
        largest_of_rows(32, 48),
        pytest.param(nearest(32, 24, 16), marks=pytest.mark.long),
        extremes(12, 20, 3),
        parts(12, 16),
    ],
)
def test_what_the_search_proposes_computes_the_definition(dag: ComputeDAG) -> None:
    task = pickle.loads(pickle.dumps(SearchTask("task", dag, Target.host(), HARDWARE)))
    options = SearchOptions(population=48, generations=1, max_location_variants=3)
    policy = SketchPolicy(task, RandomModel(0), options, seed=5)
    for round_index in range(2):
        candidates = policy.ask(4, round_index)
        assert candidates or round_index
        for candidate in candidates:
            check(task.dag, load_steps(candidate.steps), np.random.default_rng(4), 1)
        policy.tell([TaskProgram("", candidate.steps, 1e-5 * len(candidate.steps)) for candidate in candidates])


@pytest.mark.parametrize("reducer", ["argmax", "argmin"])
def test_ties_and_nan_are_settled_as_in_numpy(reducer: str) -> None:
    reduce, right = (te.argmax, np.argmax) if reducer == "argmax" else (te.argmin, np.argmin)
    x, k = te.placeholder((300, 7), name="x"), te.reduce_axis(7, "k")
    place, value = te.compute((300,), lambda i: reduce((te.cast("int32", k), x[i, k]), axis=k), "top")
    rng = np.random.default_rng(6)
    values = rng.choice(np.array([-np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan], np.float32), (300, 7))
    found, best = evaluate([place, value], {x: values})
    np.testing.assert_array_equal(found, right(values, axis=1))
    np.testing.assert_array_equal(best, np.take_along_axis(values, found[:, None], 1)[:, 0])
