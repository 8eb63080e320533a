"""Throughput of products of narrow types: int8 and bfloat16 against float32, on one thread.

    python -m benchmarks.dot_products [--only REGEX] [--seconds S] [--out FILE]

Square matrix products and a 3x3 convolution (56 x 56, 64 to 64 channels, channels-last) of float32, of bytes (`u8s8`:
the first factor unsigned; `s8s8`: neither) and of bfloat16, with one hand-written schedule for all types. Bytes are
accumulated in int32, the others in float32. `ratio` is the speed divided by that of float32 in the same passes. `numpy`
multiplies float32, `onnxruntime` runs MatMulInteger.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from benchmarks.harness import Figure, interleaved, parse
from retune.compiler import te
from retune.compiler.codegen.dot_instructions import dot_instructions
from retune.compiler.core.dtype import is_float
from retune.compiler.core.target import Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.ir.expr import Expr
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, Reorder, Split, Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tune.onnx_runtime import OnnxRuntime, is_installed

Array = NDArray[np.generic]
Run = Callable[[], object]

TYPES: Mapping[str, tuple[str, str, str]] = {
    "float32": ("float32", "float32", "float32"),
    "u8s8": ("uint8", "int8", "int32"),
    "s8s8": ("int8", "int8", "int32"),
    "bf16": ("bfloat16", "bfloat16", "float32"),
}
"""Types of the two factors and of their sums."""
ROWS, COLUMNS = 8, 32
"""The register tile."""
SIZE, CHANNELS, KERNEL = 56, 64, 3
PASS_SECONDS = 0.03


@dataclass(frozen=True, slots=True)
class Case:
    """A computation of given types, its schedule and the operations of one call."""

    define: Callable[[tuple[str, str, str]], ComputeDAG]
    steps: tuple[Step, ...]
    operations: float
    matrix: int = 0


def matmul(size: int) -> Case:
    """A square product; panels of columns stay in the cache while all rows pass."""

    def define(types: tuple[str, str, str]) -> ComputeDAG:
        a, b = te.placeholder((size, size), types[0], "a"), te.placeholder((size, size), types[1], "b")
        k = te.reduce_axis(size, "k")

        def body(i: Expr, j: Expr) -> Expr:
            return te.sum(te.cast(types[2], a[i, k]) * te.cast(types[2], b[k, j]), k)

        return ComputeDAG([a, b, te.compute((size, size), body, "c", {"layout_free_placeholders": (b,)})])

    steps = (
        Split(2, 0, size, (ROWS,)),
        Split(2, 2, size, (COLUMNS,)),
        Reorder(2, (2, 0, 4, 1, 3)),
        Annotate(2, 4, Annotation.VECTORIZE),
    )
    return Case(define, steps, 2.0 * size**3, size)


def convolution() -> Case:
    """A convolution of an input with a border; a tile is a piece of a row by some filters."""
    room = SIZE + KERNEL - 1

    def define(types: tuple[str, str, str]) -> ComputeDAG:
        x = te.placeholder((1, room, room, CHANNELS), types[0], "x")
        w = te.placeholder((KERNEL, KERNEL, CHANNELS, CHANNELS), types[1], "w")
        ry, rx, rc = te.reduce_axis(KERNEL, "ry"), te.reduce_axis(KERNEL, "rx"), te.reduce_axis(CHANNELS, "rc")

        def body(n: Expr, y: Expr, z: Expr, f: Expr) -> Expr:
            read = te.cast(types[2], x[n, y + ry, z + rx, rc])
            return te.sum(read * te.cast(types[2], w[ry, rx, rc, f]), [ry, rx, rc])

        shape = (1, SIZE, SIZE, CHANNELS)
        return ComputeDAG([x, w, te.compute(shape, body, "y", {"layout_free_placeholders": (w,)})])

    steps = (
        Split(2, 2, SIZE, (ROWS,)),
        Split(2, 4, CHANNELS, (COLUMNS,)),
        Reorder(2, (4, 0, 1, 2, 6, 7, 8, 3, 5)),
        Annotate(2, 8, Annotation.VECTORIZE),
    )
    return Case(define, steps, 2.0 * SIZE**2 * KERNEL**2 * CHANNELS**2)


CASES: Mapping[str, Case] = {"matmul-512": matmul(512), "matmul-1024": matmul(1024), "conv3x3-56x56x64": convolution()}


def main(argv: Sequence[str] | None = None) -> None:
    """Print one JSON line a case, type and backend."""
    run = parse(__doc__, argv, seconds=1.0, seconds_help="seconds of timing for each contender")
    for name in filter(run.wants, CASES):
        run.write_all(figures(name, CASES[name], run.seconds))


def figures(name: str, case: Case, seconds: float) -> Iterator[Figure]:
    """One case in all types, which are interleaved."""
    runs: dict[str, Run] = {}
    for kind, types in TYPES.items():
        if kind != "bf16" or ("bfloat16", "bfloat16") in dot_instructions(Target.host()):
            runs[f"{kind} retune"] = _kernel(case, types)
    if case.matrix:
        left, right = (np.random.default_rng(n).random((case.matrix, case.matrix), np.float32) for n in range(2))
        out = np.empty_like(left)
        runs["float32 numpy"] = lambda: np.matmul(left, right, out=out)
        if is_installed():
            for kind in ("u8s8", "s8s8"):
                runs[f"{kind} onnxruntime"] = _session(case.matrix, TYPES[kind])
    times = interleaved(runs, passes=max(3, round(seconds / PASS_SECONDS)), pass_seconds=PASS_SECONDS)
    for contender, taken in times.items():
        kind, backend = contender.split()
        ratio = times["float32 retune"] / taken
        details: dict[str, object] = {"ratio": round(ratio, 2), "us": round(taken * 1e6, 1)}
        yield Figure(f"{name}-{kind}", backend, 1, "speed", case.operations / taken / 1e9, "GOP/s", details=details)


def _drawn(shape: Sequence[int], dtype: str, seed: int) -> Array:
    """Random numbers: integers of the whole range, floats in [-1, 1)."""
    rng = np.random.default_rng(seed)
    if is_float(dtype):
        return rng.uniform(-1, 1, tuple(shape)).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, tuple(shape), np.dtype(dtype), endpoint=True)


def _kernel(case: Case, types: tuple[str, str, str]) -> Run:
    """The call of our kernel on random inputs, its result checked once where NumPy has the answer."""
    dag, target = case.define(types), Target.host()
    artifact = build_kernel(SearchTask("case", dag, target, hardware_of(target, 1)), case.steps, "kernel")
    buffers = [aligned_array((spec.size,), spec.dtype) for spec in artifact.args]
    values = [_drawn(tensor.shape, tensor.dtype, seed) for seed, tensor in enumerate(dag.inputs)]
    for buffer, spec, value in zip(buffers, artifact.args, values, strict=False):
        buffer[...] = value.reshape(-1) if spec.packing is None else spec.packing.pack(value)
    run = load_kernels([artifact])["kernel"].bind(buffers, 1)
    run()
    if case.matrix:
        wanted = values[0].astype(np.float64) @ values[1].astype(np.float64)
        error = np.abs(buffers[-1].reshape(wanted.shape) - wanted).max()
        if not error <= (1e-3 if is_float(types[2]) else 0.0):
            raise SystemExit(f"{case.matrix} {types}: the kernel is wrong by {error}")
    return run


def _session(size: int, types: tuple[str, str, str]) -> Run:
    """The call of ONNX Runtime's product of bytes, with a constant second factor."""
    kinds = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
    node = helper.make_node("MatMulInteger", ["a", "b"], ["c"])
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("a", kinds[types[0]], (size, size))],
        [helper.make_tensor_value_info("c", TensorProto.INT32, (size, size))],
        [numpy_helper.from_array(_drawn((size, size), types[1], 1), "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    session = OnnxRuntime(model.SerializeToString(), 1)
    inputs = {"a": _drawn((size, size), types[0], 0)}
    return lambda: session.run(inputs)


if __name__ == "__main__":
    main()
