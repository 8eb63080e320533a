"""Every operator and conversion of every type, as PTX: executed, it computes what its meaning in NumPy is."""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from retune.compiler import te
from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.core.dtype import BFLOAT16, HALVES, is_float
from retune.compiler.core.errors import DefinitionError
from retune.compiler.core.target import Target
from retune.compiler.ir.expr import Expr
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate, Split, Step
from tests.support.ptx.machine import run_ptx
from tests.support.simt.execute import execute
from tests.support.tiers import long_except
from tests.support.workloads import GPU

FLOATS = ("float64", "float32", *HALVES)
WHOLE = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
TYPES = (*FLOATS, *WHOLE, "bool")
COUNT = 64
OPERATORS: tuple[Callable[[Any, Any], Any], ...] = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
    *(operator.lt, operator.le, operator.eq, operator.ne, te.maximum, te.minimum),
    *(operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift, te.nextafter),
)
FUNCTIONS = (abs, te.floor, te.ceil, te.round, te.isnan, te.popcount, te.clz)


def values(dtype: str, seed: int) -> NDArray[Any]:
    """Odd and usual numbers of a type; those of 64 bits are also just beyond what 32 can hold."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, COUNT).astype(np.bool_)
    if is_float(dtype):
        found = rng.normal(0, 1, COUNT) * 10.0 ** rng.integers(-3, 3, COUNT)
        found[:8] = [0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5]
        return found.astype(dtype)
    info = np.iinfo(dtype)
    found = rng.integers(info.min, info.max, COUNT, dtype=dtype, endpoint=True)
    found[8:40] = rng.integers(0 if info.min == 0 else -9, 9, 32)
    if info.bits == 64:
        found[40:48] = (1 << 32) + rng.integers(0, 9, 8)
    found[:6] = [0, 1, 2, 3, info.max, info.min]
    return found


def conversion(dtype: str, other: str, value: Expr) -> Expr:
    """To an integer of what all of these hold."""
    if is_float(dtype) and other in WHOLE:
        value = te.minimum(te.maximum(value, te.cast(dtype, 0)), te.cast(dtype, 100))
    return te.cast(other, value)


def made(values_of: Callable[..., Any]) -> list[te.Tensor]:
    """A tensor of these elements; none where there is no such operator on the type."""
    try:
        return [te.compute((COUNT,), values_of, "out")]
    except (DefinitionError, TypeError):
        return []


def made_of(function: Callable[..., Any], *args: Any) -> Any:
    """A function of the elements of tensors; the last argument is their place."""
    *tensors, place = args
    return function(*(tensor[place] for tensor in tensors))


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", long_except(["float32", "float16", "int32", "bool"], TYPES))
def test_the_ptx_of_operators_computes_what_they_mean(dtype: str, lanes: int) -> None:
    x, y = te.placeholder((COUNT,), dtype, "x"), te.placeholder((COUNT,), dtype, "y")
    several = [partial(made_of, op, x, y) for op in OPERATORS] + [partial(made_of, one, x) for one in FUNCTIONS]
    several += [partial(made_of, partial(conversion, dtype, to), x) for to in TYPES if to != dtype]
    outputs = [tensor for each in several for tensor in made(each)]
    assert len(outputs) >= 19
    dag = ComputeDAG([x, y, *outputs])
    steps: list[Step] = []
    for stage in map(dag.id_of, outputs):
        vector = (Split(stage, 0, COUNT, (lanes,)), Annotate(stage, 1, Annotation.VECTORIZE)) if lanes > 1 else ()
        steps += [*vector, Annotate(stage, 0, Annotation.THREAD_X)]
    function = lower_for_gpu(replay(dag, tuple(steps)), "k", GPU)
    given = [values(dtype, 0), values(dtype, 1)]
    text = ptx(function, Target("cuda"))
    for output, one, other in zip(outputs, run_ptx(text, function, given), execute(function, given), strict=True):
        if not is_float(output.dtype):
            np.testing.assert_array_equal(one, other, err_msg=str(output.op))
            continue
        exact = 1e-2 if output.dtype == BFLOAT16 else 4 * float(np.finfo(output.dtype).eps)
        near, wanted = (each.astype("float64") for each in (one, other))
        np.testing.assert_allclose(near, wanted, rtol=exact, atol=1e-300, err_msg=str(output.op))


@pytest.mark.parametrize("extent", [64, 24])
@pytest.mark.parametrize("dtype", ["float64", "int64", "float16", BFLOAT16, "int8", "uint32"])
def test_threads_hand_each_other_values_of_any_width(dtype: str, extent: int) -> None:
    """By shuffles, or through shared memory where they fill no warp."""
    x, k = te.placeholder((4, extent), dtype, "x"), te.reduce_axis(extent, "k")
    dag = ComputeDAG([x, te.compute((4,), lambda i: te.max(x[i, k], k), "y")])
    steps = (
        Split(1, 1, extent, (extent // 2,)),
        Annotate(1, 2, Annotation.THREAD_X),
        Annotate(1, 0, Annotation.BLOCK_X),
    )
    function = lower_for_gpu(replay(dag, steps), "k", GPU)
    given = [np.resize(values(dtype, 2), (4, extent))]
    (found,), (wanted,) = run_ptx(ptx(function, Target("cuda")), function, given), execute(function, given)
    np.testing.assert_array_equal(found.astype("float64"), wanted.astype("float64"))
    np.testing.assert_array_equal(wanted.astype("float64"), given[0].astype("float64").max(axis=1))
