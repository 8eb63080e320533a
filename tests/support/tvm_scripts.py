"""What scripts use: workloads, and a machine whose programs take as long as their text says."""

from collections.abc import Sequence
from zlib import crc32

import numpy as np

from retune.compiler import te
from retune.compiler.measure.record import Measurement, MeasureStatus
from retune.compiler.schedule.steps import Step, dump_steps
from retune.compiler.schedule.task import SearchTask as PlainTask
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.tensor import Tensor
from retune.compiler.tvm.auto_scheduler import SearchTask, State, build


def matmul(n: int, m: int, k: int) -> list[Tensor]:
    """C = A @ B, the layout of B is free."""
    a, b = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis(k, "k")
    free = {"layout_free_placeholders": (b,)}
    return [a, b, te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "C", free)]


def zero_rank_reduce(n: int) -> list[Tensor]:
    """The sum of n numbers."""
    a, r = te.placeholder((n,), name="A"), te.reduce_axis(n, "k")
    return [a, te.compute((), lambda: te.sum(a[r], r), "B")]


def zero_rank_compute(n: int) -> list[Tensor]:
    """The first of n numbers."""
    a = te.placeholder((n,), name="A")
    return [a, te.compute((), lambda: a[0], "B")]


class Simulated:
    """A measurer: a program takes as many microseconds as the checksum of its steps says, or fails when `failing`."""

    def __init__(self, failing: bool = False) -> None:
        self.failing = failing
        self.seen: list[tuple[str, str]] = []

    def measure(
        self, task: PlainTask, candidates: Sequence[Sequence[Step]], best_seconds: float | None = None
    ) -> list[Measurement]:
        """One result each."""
        del best_seconds
        self.seen += [(task.workload_key, dump_steps(steps)) for steps in candidates]
        if self.failing:
            return [Measurement((), MeasureStatus.COMPILE_HOST, "E" * 2000, 0.1, 0.0)] * len(candidates)
        times = [1e-6 * (1 + crc32(dump_steps(steps).encode()) % 1000) for steps in candidates]
        return [Measurement((time,), MeasureStatus.OK, "", 0.1, 0.2) for time in times]


def check(task: SearchTask, applied: tuple[State, list[Tensor]]) -> None:
    """What was applied computes what the definition says."""
    schedule, args = applied
    function = build(schedule, args)
    rng = np.random.default_rng(0)
    arrays = {tensor: rng.random(tensor.shape, np.float32) for tensor in args[: len(task.compute_dag.inputs)]}
    (result,) = function.outputs()
    function(*function.prepared(*arrays.values()), result)
    (expected,) = evaluate([args[-1]], arrays)
    np.testing.assert_allclose(result, expected, rtol=1e-5)
