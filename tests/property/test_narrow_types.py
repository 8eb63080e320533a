"""Products of narrow numbers compute the definition under random schedules, with and without dot products."""

import contextlib

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.codegen.dot_instructions import dot_instructions
from retune.compiler.core.errors import LoweringError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.ir.dot import is_possible
from retune.compiler.ir.expr import Expr, is_float
from retune.compiler.model import RandomModel
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, State
from retune.compiler.schedule.steps import Annotate, CacheRead, Reorder, Split, Step, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.te.reduction import Axis
from retune.compiler.te.tensor import Tensor
from tests.support.property.checks import checked, explained
from tests.support.property.programs import random_steps
from tests.support.property.wild import wild_steps
from tests.support.tiers import long_except

PLAIN = Target("llvm -mcpu=x86-64-v3")
FACTORS = (
    ("uint8", "int8", "int32"),
    ("int8", "uint8", "int32"),
    ("int8", "int8", "int32"),
    ("uint8", "uint8", "uint32"),
    ("bfloat16", "bfloat16", "float32"),
    ("float16", "float16", "float32"),
    ("float16", "float16", "float16"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("int8", "int8", "int8"),
)
"""Types of the factors, and that in which they are multiplied and summed."""
ROUNDING = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def _product(dtype: str, lhs: Expr, rhs: Expr) -> Expr:
    return te.cast(dtype, lhs) * te.cast(dtype, rhs)


def matmul(rng: np.random.Generator, types: tuple[str, str, str]) -> ComputeDAG:
    """Either operand turned round, the second one packed or not."""
    n, m = int(rng.integers(1, 20)), int(rng.integers(1, 80))
    k = int(rng.choice([1, 2, 3, 4, 5, 8, 12, 16, 20, 24, 32, 36]))
    left, right = bool(rng.integers(3) == 0), bool(rng.integers(3) == 0)
    a = te.placeholder((k, n) if left else (n, k), types[0], "a")
    b = te.placeholder((m, k) if right else (k, m), types[1], "b")
    r = te.reduce_axis(k, "r")

    def body(i: Expr, j: Expr) -> Expr:
        return te.sum(_product(types[2], a[r, i] if left else a[i, r], b[j, r] if right else b[r, j]), r)

    attrs = {"layout_free_placeholders": (b,)} if rng.integers(3) else None
    c = te.compute((n, m), body, "c", attrs)
    if rng.integers(2):
        return ComputeDAG([a, b, c])
    return ComputeDAG([a, b, te.compute((n, m), lambda i, j: c[i, j] + te.const(3, c.dtype), "d")])


def convolution(rng: np.random.Generator, types: tuple[str, str, str]) -> ComputeDAG:
    """3 by 3 or 1 by 1, channels last, with a border of zeros."""
    size, into, out = int(rng.integers(3, 7)), int(rng.choice([1, 3, 4, 5, 8, 12])), int(rng.integers(1, 50))
    kernel, stride = int(rng.choice([1, 3])), int(rng.integers(1, 3))
    pad = kernel // 2
    x = te.placeholder((1, size, size, into), types[0], "x")
    w = te.placeholder((kernel, kernel, into, out), types[1], "w")

    def bordered(n: Expr, y: Expr, z: Expr, c: Expr) -> Expr:
        inside = te.logical_and(y >= pad, y < size + pad, z >= pad, z < size + pad)
        return te.if_then_else(inside, x[n, y - pad, z - pad, c], te.const(0, x.dtype))

    source = te.compute((1, size + 2 * pad, size + 2 * pad, into), bordered, "border") if pad else x
    high = (size + 2 * pad - kernel) // stride + 1
    axes = [te.reduce_axis(kernel, "kh"), te.reduce_axis(kernel, "kw"), te.reduce_axis(into, "ci")]

    def body(n: Expr, y: Expr, z: Expr, f: Expr) -> Expr:
        kh, kw, ci = axes
        read = source[n, y * stride + kh, z * stride + kw, ci]
        return te.sum(_product(types[2], read, w[kh, kw, ci, f]), axes)

    attrs = {"layout_free_placeholders": (w,)} if rng.integers(3) else None
    return ComputeDAG([x, w, te.compute((1, high, high, out), body, "conv", attrs)])


def tiled_steps(dag: ComputeDAG, rng: np.random.Generator) -> tuple[Step, ...]:
    """The reduction outside of a small tile, of any sizes, with a vector loop: what a tuned program looks like."""
    stage = next(i for i, op in enumerate(dag.nodes) if getattr(op.op, "reduce_axes", ()))
    state = State.initial(dag)
    op = state.stages[stage].op
    spatial, reducing = len(op.shape), len(op.reduce_axes)  # type: ignore[union-attr]
    for place in reversed(range(spatial + reducing)):
        extent = state.stages[stage].iters[place].extent
        assert isinstance(extent, int)
        sizes = (1, 2, 4, 8, 16) if place >= spatial else (1, 2, 3, 4, 7, 16, 32, 48)
        size = int(rng.choice([size for size in sizes if size <= extent]))
        state = state.apply(Split(stage, place, extent, (size,)))
    outer = [2 * place for place in range(spatial + reducing)]
    order = [*outer, *(loop + 1 for loop in outer[spatial:]), *(loop + 1 for loop in outer[:spatial])]
    state = state.apply(Reorder(stage, tuple(order)))
    state = state.apply(Annotate(stage, len(order) - 1, Annotation.VECTORIZE))
    if rng.integers(4) == 0:
        state = state.apply(CacheRead(0, "local", (dag.readers[0][0],)))
    return tuple(step for step in state.steps if isinstance(step, Step))


def inputs_of(dag: ComputeDAG, rng: np.random.Generator) -> dict[Tensor, np.ndarray]:
    """Integers of their whole range, floats in [-1, 1)."""
    values = {}
    for tensor in dag.inputs:
        if is_float(tensor.dtype):
            values[tensor] = rng.uniform(-1, 1, tensor.shape).astype(tensor.dtype)
        else:
            info = np.iinfo(tensor.dtype)
            values[tensor] = rng.integers(info.min, info.max, tensor.shape, tensor.dtype, endpoint=True)
    return values


def tolerance(dag: ComputeDAG, dtype: str) -> float:
    """Of a sum of products below one: each of them and the whole are rounded, partial sums in float32."""
    if not is_float(dtype):
        return 0.0
    axes: tuple[Axis, ...] = next(op.op.reduce_axes for op in dag.nodes if getattr(op.op, "reduce_axes", ()))  # type: ignore[union-attr]
    terms = float(np.prod([axis.extent for axis in axes])) + 1.0
    return ROUNDING[dtype] * (terms + 4.0) + ROUNDING["float32"] * terms**1.5


def one(seed: int) -> frozenset[str]:
    """A random program; what it was like."""
    rng = np.random.default_rng(seed)
    types = FACTORS[seed % len(FACTORS)]
    dag = (matmul if rng.integers(2) else convolution)(rng, types)
    kind = int(rng.integers(5))
    steps = tiled_steps(dag, rng) if kind < 3 else random_steps(dag, rng) if kind == 3 else wild_steps(dag, rng)
    values, facts = inputs_of(dag, rng), frozenset[str]()
    for target in (None, PLAIN) if seed % 3 == 0 else (None,):
        try:
            with contextlib.suppress(LoweringError):
                facts |= checked(dag, steps, values, 1 + seed % 2, [tolerance(dag, types[2])], target=target)
        except AssertionError as failure:
            raise AssertionError(f"{failure}\n{target}\n{explained(dag, steps)}") from None
    return facts


@pytest.mark.parametrize("batch", long_except([0], range(6)))
def test_narrow_products_compute_the_definition(batch: int) -> None:
    facts = [one(seed) for seed in range(20 * batch, 20 * batch + 20)]
    assert any("dot products" in fact for fact in facts) == bool(dot_instructions(Target.host()))


@pytest.mark.parametrize("types", [FACTORS[0], FACTORS[2], FACTORS[4]])
def test_what_the_search_proposes_computes_the_definition(types: tuple[str, str, str]) -> None:
    x, w = te.placeholder((1, 10, 10, 16), types[0], "x"), te.placeholder((3, 3, 16, 32), types[1], "w")
    axes = [te.reduce_axis(3, "kh"), te.reduce_axis(3, "kw"), te.reduce_axis(16, "ci")]

    def body(n: Expr, y: Expr, z: Expr, f: Expr) -> Expr:
        return te.sum(_product(types[2], x[n, y + axes[0], z + axes[1], axes[2]], w[(*axes, f)]), axes)

    dag = ComputeDAG([x, w, te.compute((1, 8, 8, 32), body, "conv", {"layout_free_placeholders": (w,)})])
    task = SearchTask("conv", dag, Target.host(), HardwareParams(1))
    policy = SketchPolicy(task, RandomModel(0), SearchOptions(population=64, generations=1), seed=1)
    values = inputs_of(dag, np.random.default_rng(0))
    facts = [
        checked(dag, load_steps(program.steps), values, 1, [tolerance(dag, types[2])]) for program in policy.ask(8, 0)
    ]
    there = is_possible(dot_instructions(Target.host()), types[0], types[1])
    assert any("dot products" in fact for fact in facts) == there


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(30))
def test_thousands_of_narrow_products_compute_the_definition(batch: int) -> None:
    for seed in range(10_000 + 100 * batch, 10_000 + 100 * batch + 100):
        one(seed)
