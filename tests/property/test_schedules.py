"""Any schedule computes what the definition says: chosen ones, the default ones, and a long sweep of random ones."""

import contextlib

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import LoweringError
from retune.compiler.core.target import HardwareParams
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, ComputeAt, ComputeInline, Fuse, Split, Step, dump_steps, load_steps
from tests.support.property.checks import check
from tests.support.property.computations import random_computation
from tests.support.property.programs import random_program
from tests.support.property.wild import wild_steps


@pytest.mark.parametrize("seed", range(12))
def test_the_default_schedule_computes_the_definition(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    dag = random_program(rng)
    check(dag, default_steps(dag), rng, threads=2)


@pytest.mark.parametrize(("width", "registers"), [(16, 32), (32, 16), (64, 32)])
def test_the_default_schedule_of_a_product_of_any_size_computes_it(width: int, registers: int) -> None:
    rng = np.random.default_rng(width)
    hardware = HardwareParams(num_cores=2, vector_unit_bytes=width, vector_registers=registers)
    for _ in range(12):
        rows, columns, sums = (int(size) for size in rng.integers((1, 16, 1), (60, 180, 12)))
        a, b = te.placeholder((rows, sums), name="a"), te.placeholder((sums, columns), name="b")
        k = te.reduce_axis(sums, "k")
        dag = ComputeDAG([a, b, te.compute((rows, columns), lambda i, j, a=a, b=b, k=k: te.sum(a[i, k] * b[k, j], k))])
        check(dag, default_steps(dag, hardware), rng, threads=2)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(40))
def test_thousands_of_wild_schedules_compute_the_definition(batch: int) -> None:
    for seed in range(1000 + 200 * batch, 1200 + 200 * batch):
        wild(seed)


def wild(seed: int) -> None:
    """A random schedule with nothing spared: right, or refused."""
    rng = np.random.default_rng(seed)
    dag = random_computation(rng)
    steps = wild_steps(dag, rng)
    assert load_steps(dump_steps(steps)) == steps
    with contextlib.suppress(LoweringError):  # a parallel loop inside another one, say: refused, never miscompiled
        check(dag, steps, rng, threads=1 + seed % 2)


def test_an_inlined_stage_is_read_at_the_readers_point() -> None:
    # Both stages call their axis `i`, and `0 + i` folds to `i`: what is put in must not be replaced again.
    x = te.placeholder((9,), name="x")
    shifted = te.compute((5, 5), lambda i, j: x[i + j], "shifted")
    row = te.compute((5,), lambda i: shifted[0, i] * 2.0, "row")
    dag = ComputeDAG([x, row])
    check(dag, (ComputeInline(dag.id_of(shifted)),), np.random.default_rng(0), 1)


def test_an_index_through_floats_is_not_taken_for_a_literal() -> None:
    x = te.placeholder((16,), name="x")
    doubled = te.compute((16,), lambda i: x[i] * 2.0, "doubled")
    near = te.compute((16,), lambda i: doubled[te.cast("int64", te.cast("float32", i) * 0.5)], "near")
    dag = ComputeDAG([x, near])
    steps = (ComputeAt(dag.id_of(doubled), dag.id_of(near), 0),)
    check(dag, steps, np.random.default_rng(0), 1)


def test_a_loop_of_mixed_axes_is_refused() -> None:
    x, k = te.placeholder((4, 6), name="x"), te.reduce_axis(6, "k")
    dag = ComputeDAG([x, te.compute((4,), lambda i: te.sum(x[i, k], k), "total")])
    with pytest.raises(LoweringError, match="mixes axes"):
        check(dag, (Fuse(1, (0, 1)),), np.random.default_rng(0), 1)


@pytest.mark.parametrize(
    "more", [(Split(2, 0, 1, (4,)),), (Annotate(2, 0, Annotation.PARALLEL),), (ComputeAt(1, 2, 0),)]
)
def test_the_loop_of_a_result_without_axes_is_a_loop_like_any_other(more: tuple[Step, ...]) -> None:
    x = te.placeholder((2, 3), name="x")
    i, j = te.reduce_axis(2, "i"), te.reduce_axis(3, "j")
    total = te.compute((), lambda: te.sum(x[i, j], [i, j]), "total")
    dag = ComputeDAG([x, te.compute((), lambda: total[()] * 0.5, "halved")])
    check(dag, (Fuse(2, ()), *more), np.random.default_rng(0), 1)
