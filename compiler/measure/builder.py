"""In: schedules of a task. Out: one `BuildResult` each, in order. Always: compiled in worker processes,
several at once; a candidate that crashes the compiler or takes too long costs one result.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Self

from compiler.config import usable_cores
from compiler.errors import OptionError
from compiler.measure.attribution import collect
from compiler.measure.record import MeasureStatus
from compiler.measure.results import BuildResult
from compiler.measure.worker_process import WorkerFailedError, WorkerPool, WorkerProcess, WorkerTimeoutError
from compiler.schedule.steps import Step
from compiler.schedule.task import SearchTask

_WORKER = "compiler.measure.build_worker"
_DEFAULT = "compiler.driver.build:build_kernel"
_CHUNK = 2
_USES_PER_WORKER = 2000


class LocalBuilder:
    """Builds candidates on this machine with `n_parallel` processes, by default one per core.

    Parameters and defaults are those of TVM's builder. `timeout` is in seconds for one candidate. `build_func` is the
    dotted path of (task, steps, kernel name) -> KernelArtifact, or "default" for our own.
    """

    def __init__(self, timeout: float = 15.0, n_parallel: int | None = None, build_func: str = "default") -> None:
        self.n_parallel = usable_cores() if n_parallel is None else n_parallel
        if self.n_parallel < 1 or timeout <= 0:
            raise OptionError(f"a builder needs at least one process and some time, not {n_parallel} and {timeout} s")
        self.timeout_s = timeout
        self.build_func = _DEFAULT if build_func == "default" else build_func
        self._pool = WorkerPool(self.n_parallel, lambda: WorkerProcess(maximum_uses=_USES_PER_WORKER))

    def build(self, task: SearchTask, candidates: Sequence[Sequence[Step]]) -> list[BuildResult]:
        """Build every candidate (the steps of one program each).

        A failed result has status INSTANTIATION (the steps do not apply), COMPILE_HOST or BUILD_TIMEOUT.

        Raises: MeasureError when the workers cannot work at all.
        """
        if not candidates:
            return []
        share = min(_CHUNK, math.ceil(len(candidates) / self.n_parallel))
        chunks = [candidates[first : first + share] for first in range(0, len(candidates), share)]
        parts = self._pool.map(lambda worker, chunk: self._build_chunk(worker, task, chunk), chunks)
        return list(itertools.chain.from_iterable(parts))

    def close(self) -> None:
        """End the worker processes; a later `build` starts new ones."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build_chunk(
        self, worker: WorkerProcess, task: SearchTask, chunk: Sequence[Sequence[Step]]
    ) -> list[BuildResult]:
        key = f"{task.workload_key} {task.target}"

        def stream_from(first: int) -> Iterator[object]:
            worker.renew()
            if not worker.call(f"{_WORKER}:knows", key, timeout_s=worker.start_timeout_s):
                worker.call(f"{_WORKER}:remember", key, task, self.build_func, timeout_s=worker.start_timeout_s)
            rest = [tuple(steps) for steps in chunk[first:]]
            return worker.stream(f"{_WORKER}:build_stream", key, self.build_func, rest, timeout_s=self.timeout_s)

        return collect(len(chunk), stream_from, self._failed)

    def _failed(self, error: WorkerFailedError, seconds: float) -> BuildResult:
        if isinstance(error, WorkerTimeoutError):
            text = f"the build took more than {self.timeout_s:g} s"
            return BuildResult(None, MeasureStatus.BUILD_TIMEOUT, text, seconds)
        return BuildResult(None, MeasureStatus.COMPILE_HOST, f"the compiler crashed: {error}", seconds)
