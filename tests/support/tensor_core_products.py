"""Products of matrices that tensor cores multiply, small enough to be executed thread by thread, and their programs."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from retune.compiler import te
from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.core.gpu_facts import facts_of
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.ir.expr import Expr
from retune.compiler.ir.kernel import DeviceFunction
from retune.compiler.ir.stmt import Block, Stmt, map_stmt, walk_stmt
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.ops import OPS, Attribute
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import AsMatmul, Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.space import SketchSpace
from retune.compiler.search.spaces import build_spaces
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.tensor import Tensor
from tests.support.property.programs import inputs_of
from tests.support.ptx.machine import run_ptx
from tests.support.simt.execute import execute
from tests.support.workloads import GPU

TF32 = Target("cuda -arch=sm_80 -math=tf32")
WARPGROUPS = Target("cuda -arch=sm_90a")
WARPGROUP_GPU = replace(GPU, max_shared_memory_per_block=227 << 10, facts=facts_of("sm_90a"))
"""A GPU whose warpgroups multiply."""


def product(
    m: int, n: int, k: int, dtype: str = "float16", out: str = "float32", *, turned: str = "", relu: bool = False
) -> ComputeDAG:
    """C = A B, summed and written as `out`; those of A and B that `turned` names are given as columns, and what is
    below 0 after a bias is 0 with `relu`.
    """
    a = te.placeholder((k, m) if "A" in turned else (m, k), dtype, "A")
    b = te.placeholder((n, k) if "B" in turned else (k, n), dtype, "B")
    r = te.reduce_axis(k, "k")

    def element(tensor: Tensor, row: Expr, column: Expr) -> Expr:
        read = tensor[column, row] if tensor.name in turned else tensor[row, column]
        return read if dtype == out else te.cast(out, read)

    c = te.compute((m, n), lambda i, j: te.sum(element(a, i, r) * element(b, r, j), r), "C")
    if not relu:
        return ComputeDAG([a, b, c])
    bias = te.placeholder((n,), out, "bias")
    d = te.compute((m, n), lambda i, j: c[i, j] + bias[j], "D")
    return ComputeDAG([a, b, bias, te.compute((m, n), lambda i, j: te.maximum(d[i, j], 0.0), "E")])


def called(op: str, shapes: tuple[tuple[int, ...], ...], dtype: str, out: str, **attrs: Attribute) -> ComputeDAG:
    """One operation on placeholders of `shapes`."""
    inputs = [te.placeholder(each, dtype, f"x{place}") for place, each in enumerate(shapes)]
    return ComputeDAG([*inputs, OPS[op].tensor(inputs, attrs, name="y", out_dtype=out)])


def conv(
    size: int, channels: tuple[int, int], kernel: int, dtype: str, out: str, stride: int = 1, layout: str = "NHWC"
) -> ComputeDAG:
    """A convolution of two images, padded to keep the size where the stride is 1."""
    (taken, made), pad = channels, kernel // 2
    if layout == "NHWC":
        shapes: tuple[tuple[int, ...], ...] = (2, size, size, taken), (kernel, kernel, taken, made)
    else:
        shapes = (2, taken, size, size), (made, taken, kernel, kernel)
    return called(
        "conv2d",
        shapes,
        dtype,
        out,
        strides=(stride, stride),
        dilations=(1, 1),
        pads=(pad,) * 4,
        groups=1,
        layout=layout,
    )


PRODUCTS: dict[str, Callable[[], ComputeDAG]] = {
    "f16": lambda: product(64, 48, 64),
    "f16 written as f16": lambda: product(64, 48, 32, out="float16"),
    "sizes that nothing divides": lambda: product(50, 37, 43),
    "bf16 by columns": lambda: product(72, 40, 48, "bfloat16", turned="AB"),
    "bias and relu": lambda: product(48, 40, 32, "bfloat16", relu=True),
    "tf32": lambda: product(64, 48, 64, "float32"),
    "tf32 by columns": lambda: product(48, 40, 40, "float32", turned="AB", relu=True),
    "tf32 along the depth": lambda: product(48, 40, 40, "float32", turned="B"),
    "batched": lambda: called("batch_matmul", ((3, 32, 24), (3, 24, 16)), "float16", "float32"),
    "attention": lambda: called(
        "contract",
        ((3, 24, 40), (40, 3, 16)),
        "float32",
        "float32",
        left="hij",
        right="jhd",
        result="ihd",
    ),
    "conv2d": lambda: conv(7, (16, 24), 3, "float16", "float16"),
    "conv2d of one point": lambda: conv(6, (16, 24), 1, "float32", "float32"),
    "conv2d with stride": lambda: conv(9, (8, 16), 3, "float16", "float32", 2),
    "conv2d, channels first": lambda: conv(7, (16, 24), 3, "bfloat16", "float32", layout="NCHW"),
}
"""By name."""


def tensor_space(dag: ComputeDAG, target: Target = TF32, hardware: HardwareParams = GPU) -> SketchSpace:
    """The programs of a graph that use tensor cores, for its sums as they are."""
    spaces = build_spaces(SearchTask("product", dag, target, hardware), SearchOptions())
    return next(space for space in spaces if any(isinstance(step, AsMatmul) for step in space.sketch))


def sampled(space: SketchSpace, count: int, seed: int = 0) -> Iterator[tuple[Step, ...]]:
    """Legal programs of a space."""
    rows = space.sample(np.random.default_rng(seed), 8 * count)
    for _, group in space.groups(rows):
        for row in group.rows[space.legal(group)][:count]:
            yield space.steps(row)


_LENGTHS = ("rows", "row_warps", "columns", "column_warps", "steps", "depth", "left", "right")
_USUAL = {"rows": 32, "row_warps": 2, "columns": 32, "column_warps": 1, "group": 1, "steps": 1, "depth": 2}


def with_lengths(space: SketchSpace, **lengths: int) -> tuple[Step, ...]:
    """The program with the lengths that are named: rows and columns of a warp, row_warps and column_warps of a block,
    steps of an instruction's depth in one turn, depth of the pipeline, left and right elements of one copy; where the
    factors are more than the GPU's cache holds, the `group` of rows of blocks that are gone through together.
    """
    row = np.zeros(space.layout.width, np.int64)
    grouped = len(space.layout.widths) > len(_LENGTHS)
    names = (*_LENGTHS[:4], "group", *_LENGTHS[4:]) if grouped else _LENGTHS
    for name, width in zip(names, space.layout.widths, strict=True):
        row[width.column] = lengths.get(name, _USUAL.get(name, width.choices[-1]))
    return space.steps(row)


def lowered(dag: ComputeDAG, steps: tuple[Step, ...], hardware: HardwareParams = GPU) -> DeviceFunction:
    """The kernels of a program, every pass verified."""
    return lower_for_gpu(replay(dag, steps), "k", hardware, check=True)


def count_of(function: DeviceFunction, kind: type[Stmt]) -> int:
    """How many statements of a kind its kernels have."""
    return sum(isinstance(stmt, kind) for kernel in function.kernels for stmt in walk_stmt(kernel.body.body))


def broken(function: DeviceFunction, rule: Callable[[Stmt], Stmt | None]) -> DeviceFunction:
    """The function with its statements changed by a rule."""
    (kernel,) = function.kernels
    body = replace(kernel.body, body=map_stmt(kernel.body.body, rule))
    return replace(function, kernels=(replace(kernel, body=body),))


def without(function: DeviceFunction, kind: type[Stmt], number: int) -> DeviceFunction:
    """The function without its statement number `number` of a kind."""
    iteration = iter(range(10**6))
    return broken(function, lambda stmt: Block(()) if isinstance(stmt, kind) and next(iteration) == number else None)


def check_as_threads_and_as_ptx(dag: ComputeDAG, function: DeviceFunction, target: Target = TF32) -> None:
    """A program computes its definition, thread by thread, and its PTX the same."""
    values = inputs_of(dag, np.random.default_rng(1))
    given = [values[tensor] for tensor in dag.inputs]
    (wanted,) = evaluate(dag.outputs, values)
    (found,) = execute(function, given)
    np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-2 * float(np.abs(wanted).max()))
    (run,) = run_ptx(ptx(function, target), function, given)
    # The order of a sum is open: a half may be rounded the other way.
    rtol = 1e-4 if found.dtype.itemsize > 2 else 1e-2
    np.testing.assert_allclose(run, found, rtol=rtol, atol=1e-4 * float(np.abs(wanted).max()))
