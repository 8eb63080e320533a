"""Sums and products of floats of two bytes are rounded once, under every schedule.

Terms are integers whose partial sums exceed the range of float16 and the digits of both types. In float32 these are
exact in every order, so results must equal the definition bit for bit.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.codegen.dot_instructions import dot_instructions
from retune.compiler.core.dtype import HALVES
from retune.compiler.core.errors import LoweringError
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.ir.dot import is_possible
from retune.compiler.ir.expr import Expr
from retune.compiler.model import RandomModel
from retune.compiler.ops import OPS
from retune.compiler.ops.op import OpCall
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Reorder,
    Rfactor,
    Split,
    Step,
    load_steps,
)
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.te.evaluate import evaluate
from tests.property.test_narrow_types import tiled_steps
from tests.support.property.checks import Values, checked, explained
from tests.support.property.programs import random_steps
from tests.support.property.wild import wild_steps
from tests.support.tiers import long_except
from tests.support.workloads import task_of

LONG = 4096

Join = Callable[..., Expr]

ADD = te.comm_reducer(lambda x, y: te.if_then_else(x < y, x + y, y + x * 1.0), 0.0, "add")
BOTH = te.comm_reducer(lambda x, y: (x[0] + y[0], te.maximum(x[1], y[1])), lambda *_: (0.0, 0.0), "both")


def matmul(dtype: str, rows: int = 3, columns: int = 33, terms: int = LONG) -> ComputeDAG:
    a, b = te.placeholder((rows, terms), dtype, "a"), te.placeholder((terms, columns), dtype, "b")
    k = te.reduce_axis(terms, "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c", {"layout_free_placeholders": (b,)})
    return ComputeDAG([a, b, te.compute((rows, columns), lambda i, j: te.abs(c[i, j]), "d")])


def sums(dtype: str, along: int, join: Join = te.sum, terms: int = LONG) -> ComputeDAG:
    """Of rows (`along` 1) or of columns (0)."""
    shape = (5, terms) if along else (terms, 40)
    x, k = te.placeholder(shape, dtype, "x"), te.reduce_axis(terms, "k")
    return ComputeDAG([x, te.compute((shape[1 - along],), lambda i: join(x[(i, k) if along else (k, i)], k), "y")])


def several(dtype: str) -> ComputeDAG:
    """A sum and a maximum in one reduction."""
    x, k = te.placeholder((4, LONG), dtype, "x"), te.reduce_axis(LONG, "k")
    return ComputeDAG([x, *te.compute((4,), lambda i: BOTH((x[i, k], x[i, k]), axis=k), "y")])


def operator(name: str, dtype: str, shapes: tuple[tuple[int, ...], ...], attrs: Mapping[str, Any]) -> ComputeDAG:
    x, w = (te.placeholder(shape, dtype, text) for shape, text in zip(shapes, "xw", strict=True))
    y = OPS[name].tensor((x, w), attrs, name="y", constants=frozenset([w]))
    return ComputeDAG([x, w, te.compute(y.shape, lambda *i: te.abs(y[i]), "z")])


_IMAGE: dict[str, Any] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "layout": "NHWC"}
_CONV = {**_IMAGE, "dilations": (1, 1), "groups": 1}
OPERATORS: dict[str, tuple[str, tuple[tuple[int, ...], ...], tuple[int, int], Mapping[str, Any]]] = {
    "dense": ("dense", ((3, 256), (256, 33)), (1, 0), {}),
    "dense of few rows": ("dense", ((1, 90), (90, 33)), (1, 0), {}),
    "dense of many rows": ("dense", ((70, 64), (64, 100)), (1, 0), {}),
    "dense of odd terms": ("dense", ((6, 37), (37, 64)), (1, 0), {}),
    "batch_matmul": ("batch_matmul", ((2, 3, 256), (2, 256, 17)), (2, 1), {}),
    "contract": (
        "contract", ((2, 3, 256), (256, 2, 17)), (2, 0), {"left": "hij", "right": "jhd", "result": "ihd"}
    ),
    "conv2d": ("conv2d", ((1, 4, 4, 64), (3, 3, 64, 20)), (3, 2), _CONV),
    "conv2d of many rows": ("conv2d", ((1, 9, 8, 32), (3, 3, 32, 40)), (3, 2), _CONV),
    "conv2d of an image": (
        "conv2d", ((1, 9, 9, 3), (5, 5, 3, 48)), (3, 2), {**_CONV, "strides": (2, 2), "pads": (2, 2, 2, 2)}
    ),
    "conv2d of groups": ("conv2d", ((1, 4, 4, 64), (3, 3, 32, 16)), (3, 2), {**_CONV, "groups": 2}),
    "depthwise": ("conv2d", ((1, 6, 9, 32), (5, 5, 32)), (2, 1), {**_CONV, "groups": 32}),
    "conv_transpose2d": (
        "conv_transpose2d", ((1, 4, 4, 64), (3, 3, 64, 12)), (3, 2), {**_IMAGE, "strides": (2, 2)}
    ),
    "conv_phases2d": (
        "conv_phases2d", ((1, 4, 4, 64), (4, 4, 64, 12)), (3, 2),
        {"strides": (2, 2), "pads": (1, 1), "size": (4, 4), "layout": "NHWC"},
    ),
}  # fmt: skip
"""By name: operator, shapes, the axes of both operands whose terms cancel, and attributes."""


def large_inputs(dag: ComputeDAG, axes: tuple[int, int], rng: np.random.Generator) -> Values:
    """Multiples of 8 from 264 to 472: no product fits into float16, while the sums of most elements do, since the
    second half of the weights has the opposite signs.
    """
    x, w = (rng.integers(33, 59, tensor.shape, endpoint=True) * 8.0 for tensor in dag.inputs)
    of_w = np.moveaxis(w, axes[1], 0)
    apart = (len(of_w) + 1) // 2
    of_w[apart:] = -of_w[: len(of_w) - apart]
    of_w[len(of_w) - apart : apart] = 0
    of_x = np.moveaxis(x, axes[0], 0)
    of_x[:] = of_x[np.arange(len(of_x)) % apart]
    of_x[0] += 8
    return {tensor: values.astype(tensor.dtype) for tensor, values in zip(dag.inputs, (x, w), strict=True)}


GRAPHS: dict[str, Callable[[str], ComputeDAG]] = {
    "matmul": matmul,
    "rows": lambda dtype: sums(dtype, 1),
    "columns": lambda dtype: sums(dtype, 0),
    "own": lambda dtype: sums(dtype, 0, ADD),
    "several": several,
    "product": lambda dtype: sums(dtype, 1, te.prod, 64),
}


def inputs_of(dag: ComputeDAG, rng: np.random.Generator, *, product: bool = False) -> Values:
    """Terms of magnitude 80 to 200, the first half of them positive: their sum goes up to 10^5 and back."""
    x, *others = dag.inputs
    along = x.shape.index(max(x.shape))
    signs = np.where(np.arange(x.shape[along]) * 2 < x.shape[along], 1, -1)
    signs = signs.reshape([-1 if dim == along else 1 for dim in range(len(x.shape))])
    low, high = (8, 14) if others else (80, 200)
    values = rng.integers(low, high, x.shape, endpoint=True) * signs
    if product:
        values = np.exp2(signs + 0 * values)
    return {x: values.astype(x.dtype)} | {
        y: rng.integers(10, 14, y.shape, endpoint=True).astype(y.dtype) for y in others
    }


def check(dag: ComputeDAG, steps: tuple[Step, ...], values: Values, threads: int = 1) -> frozenset[str]:
    """What kinds of code the program has."""
    try:
        return checked(dag, steps, values, threads, [0.0] * len(dag.outputs))
    except AssertionError as failure:
        raise AssertionError(f"{failure}\n{explained(dag, steps)}") from None


OUTERMOST = (Split(1, 1, LONG, (64,)), Reorder(1, (1, 0, 2)))
"""The output itself would be what partial sums of 64 terms are joined in."""
SCHEDULES: dict[str, tuple[Step, ...]] = {
    "naive": (),
    "outermost": OUTERMOST,
    "vector": (Annotate(1, 0, Annotation.VECTORIZE),),
    "vector inside": (*OUTERMOST, Reorder(1, (0, 2, 1)), Annotate(1, 2, Annotation.VECTORIZE)),
    "cached": (CacheWrite(1), *OUTERMOST),
    "cached inside": (CacheWrite(1), ComputeAt(1, 2, 0), *OUTERMOST),
    "factored": (Split(1, 1, LONG, (64,)), Rfactor(1, 1, 1)),
    "factored inside": (Split(1, 1, LONG, (64,)), Rfactor(1, 1, 0), ComputeAt(1, 2, 0)),
    "factored twice": (Split(1, 1, LONG, (64,)), Rfactor(1, 1, 1), Split(1, 2, 64, (8,)), Rfactor(1, 2, 1)),
    "partial sums read through a cache": (Split(1, 1, LONG, (64,)), Rfactor(1, 1, 1), CacheRead(1, "local", (2,))),
    "partial sums written through a cache": (Split(1, 1, LONG, (64,)), Rfactor(1, 1, 1), CacheWrite(1)),
    "parallel": (Annotate(1, 0, Annotation.PARALLEL),),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("graph", ["rows", "columns", "own", "several"])
def test_sums_of_chosen_schedules_are_rounded_once(graph: str, schedule: str) -> None:
    dag = GRAPHS[graph](HALVES[len(schedule) % 2])
    check(dag, SCHEDULES[schedule], inputs_of(dag, np.random.default_rng(0)))


def test_more_sums_than_a_thread_holds_are_rounded_once() -> None:
    dtype, width = "float16", (1 << 16) + 40
    x, k = te.placeholder((4, width), dtype, "x"), te.reduce_axis(4, "k")
    dag = ComputeDAG([x, te.compute((width,), lambda i: te.sum(x[k, i], k), "y")])
    values = {x: np.tile(np.array([60000, 30000, -60000, -29000], dtype)[:, None], width)}
    check(dag, (Reorder(1, (1, 0)),), values)


@pytest.mark.parametrize("batch", long_except([0], range(16)))
def test_sums_of_random_schedules_are_rounded_once(batch: int) -> None:
    for seed in range(6 * batch, 6 * batch + 6):
        rng = np.random.default_rng(seed)
        name = list(GRAPHS)[seed % len(GRAPHS)]
        dag = GRAPHS[name](HALVES[seed // len(GRAPHS) % 2])
        values = inputs_of(dag, rng, product=name == "product")
        for make in (wild_steps, random_steps, *([tiled_steps] if name != "several" else [])):
            with contextlib.suppress(LoweringError):
                check(dag, make(dag, rng), values, 1 + seed % 2)


@pytest.mark.parametrize(("graph", "dtype"), [("matmul", "float16"), ("rows", "bfloat16"), ("columns", "float16")])
def test_sums_of_searched_programs_are_rounded_once(graph: str, dtype: str) -> None:
    dag = GRAPHS[graph](dtype)
    values = inputs_of(dag, np.random.default_rng(0))
    policy = SketchPolicy(task_of(graph, dag), RandomModel(0), SearchOptions(population=32, generations=1), seed=1)
    for program in policy.ask(8, 0):
        check(dag, load_steps(program.steps), values, 2)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", OPERATORS)
def test_products_of_operators_are_exact(name: str, dtype: str) -> None:
    op, shapes, axes, attrs = OPERATORS[name]
    dag = operator(op, dtype, shapes, attrs)
    values = large_inputs(dag, axes, np.random.default_rng(0))
    # The definition in tensor expressions and the one in NumPy agree, and most results are finite.
    (result,) = evaluate(dag.outputs, values)
    described = [tensor.op for tensor in dag.inputs]
    array = OPS[op].compute(OpCall(op, tuple(described), attrs), list(values.values()))
    np.testing.assert_array_equal(result, np.abs(array))
    assert np.isfinite(result.astype("float64")).mean() > 0.4
    stage = next(number for number, each in enumerate(dag.ops) if getattr(each, "reduce_axes", ()))
    last = len(dag.ops[stage].shape) - 1
    check(dag, (), values)
    check(dag, (Annotate(stage, last, Annotation.VECTORIZE),), values)
    for threads in (1, 2):
        facts = check(dag, default_steps(dag, hardware_of(Target.host(), threads)), values, threads)
    # No sum over channels; a choice among taps; terms that are no pairs.
    if name not in ("depthwise", "conv_transpose2d", "dense of odd terms", "conv2d of an image"):
        assert ("dot products" in facts) == is_possible(dot_instructions(Target.host()), dtype, dtype)
    policy = SketchPolicy(task_of(op, dag), RandomModel(0), SearchOptions(population=32, generations=1), seed=1)
    for program in policy.ask(4, 0):
        check(dag, load_steps(program.steps), values, 2)


@pytest.mark.parametrize("batch", long_except([0], range(8)))
def test_products_of_operators_are_exact_under_random_schedules(batch: int) -> None:
    names = list(OPERATORS)
    for seed in range(4 * batch, 4 * batch + 4):
        rng = np.random.default_rng(seed)
        op, shapes, axes, attrs = OPERATORS[names[seed % len(names)]]
        dag = operator(op, HALVES[seed // len(names) % 2], shapes, attrs)
        values = large_inputs(dag, axes, rng)
        for make in (wild_steps, random_steps):
            with contextlib.suppress(LoweringError):
                check(dag, make(dag, rng), values, 1 + seed % 2)


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_that_are_scattered_are_rounded_once(dtype: str) -> None:
    x, u = te.placeholder((8,), dtype, "x"), te.placeholder((4000,), dtype, "u")
    i = te.placeholder((4000,), "int64", "i")
    result = OPS["scatter_elements"].tensor((x, i, u), {"axis": 0, "reduction": "add"})
    values = {x: np.zeros(8, dtype), i: np.zeros(4000, np.int64), u: np.ones(4000, dtype)}
    dag = ComputeDAG([x, i, u, result])
    check(dag, default_steps(dag), values)
    check(dag, (), values)
