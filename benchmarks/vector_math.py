"""Throughput of vectorized math functions on one thread, in elements per second.

    python -m benchmarks.vector_math [--only REGEX] [--seconds S] [--out FILE]

A million float32 that fit in the caches, or a softmax of [128, 1000], each as a default kernel with a vector loop. All
contenders get the same numbers. `retune` is the kernel as it is built, `retune-libm` the same one with a C library call
per lane, `numpy` NumPy's own function where it has one. `ulp` is the largest error against float64.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Figure, interleaved, parse
from retune.compiler import te
from retune.compiler.codegen.intrinsics import FLOAT32
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.tensor import Tensor

Floats = NDArray[Any]
Numpy = Callable[[Floats, Floats], object]

COUNT = 1 << 20
ROWS, COLUMNS = 128, 1000
EXPONENT = np.float32(2.3)
PASS_SECONDS = 0.03


def _sigmoid(x: Floats, out: Floats) -> None:
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.reciprocal(out, out=out)


def _softmax(x: Floats, out: Floats) -> None:
    np.subtract(x, x.max(axis=1, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, out.sum(axis=1, keepdims=True), out=out)


RANGES: Mapping[str, tuple[float, float]] = {
    "exp": (-20, 0),
    "log": (0, 100),
    "tanh": (-4, 4),
    "sigmoid": (-8, 8),
    "erf": (-3, 3),
    "pow": (0, 10),
    "softmax": (-10, 10),
}
"""What the arguments are drawn from, evenly."""
IN_NUMPY: Mapping[str, Numpy] = {
    "exp": lambda x, out: np.exp(x, out=out),
    "log": lambda x, out: np.log(x, out=out),
    "tanh": lambda x, out: np.tanh(x, out=out),
    "sigmoid": _sigmoid,
    "pow": lambda x, out: np.power(x, EXPONENT, out=out),
    "softmax": _softmax,
}
EXACT: Mapping[str, Callable[[Floats], Floats]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "pow": lambda x: np.power(x, float(EXPONENT)),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Print two or three JSON lines a case."""
    run = parse(__doc__, argv, seconds=0.5, seconds_help="seconds of timing for each contender")
    for case in filter(run.wants, RANGES):
        run.write_all(figures(case, run.seconds))


def figures(case: str, seconds: float) -> Iterator[Figure]:
    """One case with all its contenders, who are interleaved."""
    shape = (ROWS, COLUMNS) if case == "softmax" else (COUNT,)
    x = np.random.default_rng(0).uniform(*RANGES[case], shape).astype(np.float32)
    contenders: dict[str, Callable[[], object]] = {}
    results: dict[str, Floats] = {}
    contenders["retune"], results["retune"] = _kernel(case, x)
    with patch.dict(FLOAT32, clear=True):
        contenders["retune-libm"], results["retune-libm"] = _kernel(case, x)
    if case in IN_NUMPY:
        results["numpy"] = np.empty_like(x)
        contenders["numpy"] = lambda: IN_NUMPY[case](x, results["numpy"])
    times = interleaved(contenders, passes=max(3, round(seconds / PASS_SECONDS)), pass_seconds=PASS_SECONDS)
    for backend, taken in times.items():
        details: dict[str, object] = {"us": round(taken * 1e6, 1)}
        if case in EXACT:
            details["ulp"] = round(_largest_ulp(results[backend], EXACT[case](x.astype(np.float64))), 2)
        yield Figure(case, backend, 1, "speed", x.size / taken, "element/s", details=details)


def _kernel(case: str, x: Floats) -> tuple[Callable[[], object], Floats]:
    """The call of a default kernel on `x`, and where it leaves its result."""
    source = te.placeholder(x.shape, name="x")
    output = _softmax_of(source) if case == "softmax" else _map(case, source)
    dag = ComputeDAG([source, output])
    task = SearchTask(case, dag, Target.host(), HardwareParams(1))
    artifact = build_kernel(task, default_steps(dag), "kernel")
    buffers = [aligned_array(spec.shape, spec.dtype) for spec in artifact.args]
    buffers[0][...] = x
    return load_kernels([artifact])["kernel"].bind(buffers, 1), buffers[-1]


def _map(name: str, source: Tensor) -> Tensor:
    further = (float(EXPONENT),) if name == "pow" else ()
    return te.compute(source.shape, lambda i: getattr(te, name)(source[i], *further), "y")


def _softmax_of(source: Tensor) -> Tensor:
    rows, columns = source.shape
    k, q = te.reduce_axis(columns, "k"), te.reduce_axis(columns, "q")
    top = te.compute((rows,), lambda i: te.max(source[i, k], k), "top")
    grown = te.compute((rows, columns), lambda i, j: te.exp(source[i, j] - top[i]), "grown")
    total = te.compute((rows,), lambda i: te.sum(grown[i, q], q), "total")
    return te.compute((rows, columns), lambda i, j: grown[i, j] / total[i], "softmax")


def _largest_ulp(got: Floats, exact: Floats) -> float:
    return float((np.abs(got - exact) / np.spacing(np.abs(exact).astype(np.float32))).max())


if __name__ == "__main__":
    main()
