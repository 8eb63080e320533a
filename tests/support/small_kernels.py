"""Kernels whose code fits on a few pages, and the fixed targets that it is generated for."""

from collections.abc import Callable

from retune.compiler import te
from retune.compiler.codegen.backend import backend_of
from retune.compiler.core.target import Target
from retune.compiler.ops import OPS, Attribute
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.task import SearchTask
from tests.support.simt_operators import OPERATORS
from tests.support.small_computations import doubled, matmul, sum_and_peak, window
from tests.support.workloads import max_pool, min_nm, relu_only, softmax, zero_rank_reduce

CPU = Target("llvm -mtriple=x86_64-unknown-linux-gnu -mcpu=skylake-avx512")
GPU = Target("cuda -arch=sm_80")
"""The same code is generated on every machine."""


def kernel_task(dag: ComputeDAG, target: Target) -> SearchTask:
    """A task with the hardware that the target has by definition."""
    return SearchTask("kernel", dag, target, backend_of(target).hardware(target, 2))


def called(op: str, *shapes: tuple[int, ...], dtypes: tuple[str, ...] = (), **attrs: Attribute) -> ComputeDAG:
    """One operator on placeholders."""
    types = dtypes or ("float32",) * len(shapes)
    pairs = enumerate(zip(shapes, types, strict=True))
    inputs = [te.placeholder(shape, dtype, f"x{place}") for place, (shape, dtype) in pairs]
    return ComputeDAG([*inputs, OPS[op].tensor(inputs, attrs, name="y")])


def cast(before: str, after: str) -> ComputeDAG:
    """40 numbers in another type."""
    return called("cast", (40,), dtypes=(before,), dtype=after)


KERNELS: dict[str, Callable[[], ComputeDAG]] = {
    "doubled": lambda: doubled(50),
    "relu": lambda: relu_only(1000),
    "window": window,
    "sum": lambda: zero_rank_reduce(100),
    "row_minimum": lambda: min_nm(3, 20),
    "row_sum_and_peak": lambda: sum_and_peak(3, 40),
    "matmul": lambda: matmul(4, 16, 8),
    "matmul_ragged": lambda: matmul(3, 5, 7),
    "matmul_on_threads": lambda: matmul(96, 32, 64),
    "max_pool": lambda: max_pool(4, 8),
    "norm": OPERATORS["norm"],
    "depthwise": OPERATORS["depthwise"],
    "conv1d": OPERATORS["conv1d"],
    "batched_matmul": OPERATORS["batched matmul"],
    "add_broadcast": lambda: called("add", (6, 32), (32,)),
    "divide": lambda: called("div", (40,), (40,)),
    "maximum": lambda: called("maximum", (40,), (1,)),
    "less": lambda: called("less", (40,), (40,)),
    "clip": lambda: called("clip", (4, 20), low=-0.5, high=0.75),
    "is_nan": lambda: called("is_nan", (40,)),
    "sign": lambda: called("sign", (8,)),
    "where": lambda: called("where", (8,), (8,), (8,), dtypes=("bool", "float32", "float32")),
    "transpose": lambda: called("transpose", (6, 32), perm=(1, 0)),
    "concat": lambda: called("concat", (2, 16), (2, 8), axis=1),
    "strided_slice": lambda: called("slice", (5, 32), starts=(1, 0), stops=(5, 32), steps=(1, 2)),
    "pad": lambda: called("pad", (2, 30), pads_before=(0, 1), pads_after=(1, 1), value=1.5),
    "gather": lambda: called("gather", (10, 16), (3,), dtypes=("float32", "int64"), axis=0),
    "integer_modulo": lambda: called("mod", (40,), (40,), dtypes=("int32", "int32")),
    "shift_left": lambda: called("shift_left", (64,), (64,), dtypes=("uint8", "uint8")),
    "to_half": lambda: cast("float32", "float16"),
    "to_bfloat16": lambda: cast("float32", "bfloat16"),
    "to_int32": lambda: cast("float32", "int32"),
    "to_double": lambda: cast("int32", "float64"),
}
"""Computations by name; their schedule is the default one."""

CPU_KERNELS: dict[str, Callable[[], ComputeDAG]] = {
    "exp": lambda: called("exp", (16,)),
    "tanh": lambda: called("tanh", (16,)),
    "softmax": lambda: softmax(2, 16),
}
"""Those whose functions a GPU takes from a library, whose code another release of it changes."""
