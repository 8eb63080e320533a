"""Builds candidates of a task in several worker processes.

One untimed `Measurement` a candidate, in order. Crashes and time-outs are results too.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from numbers import Real

from retune.compiler.core.closing import Closing
from retune.compiler.core.config import usable_cpus
from retune.compiler.core.errors import NotYetError, OptionError
from retune.compiler.measure.attribution import collect
from retune.compiler.measure.processes.worker_pool import WorkerPool
from retune.compiler.measure.processes.worker_process import WorkerFailedError, WorkerProcess, WorkerTimeoutError
from retune.compiler.measure.record import Measurement, MeasureStatus
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask

_WORKER = "retune.compiler.measure.processes.build_worker"
_DEFAULT = "retune.compiler.codegen.build:build_kernel"
# A fresh process every 2,000 programs bounds the compiler's leaks (TVM issue 11096), at the price of one import.
_USES_PER_WORKER = 2000


class LocalBuilder(Closing):
    """Builds candidates on this machine with `n_parallel` processes, by default one per core.

    Parameters and defaults are those of TVM's builder. `timeout` is in seconds for one candidate. `build_func` is
    "default" for Retune's builder, or (task, steps, kernel name) -> KernelArtifact: a function of a module that the
    processes can import, or its path `package.module:name`. `lane` names CPUs on which programs are timed: processes
    bound to the other CPUs, one each, build at any time, the remaining processes only while nothing is timed, see
    `quiet`. Several threads may build concurrently.
    Raises: OptionError for invalid values, NotYetError for "ndk".
    """

    def __init__(
        self,
        timeout: float = 15.0,
        n_parallel: int | None = None,
        build_func: Callable[..., KernelArtifact] | str = "default",
        *,
        lane: Sequence[int] = (),
    ) -> None:
        other_cpus = tuple(cpu for cpu in usable_cpus() if cpu not in lane)
        self.n_parallel = len(usable_cpus()) if n_parallel is None else n_parallel
        has_timeout = isinstance(timeout, Real) and 0 < timeout < math.inf
        if not isinstance(self.n_parallel, int) or self.n_parallel < 1 or not has_timeout:
            raise OptionError(
                f"a builder needs at least one process and some time, not {n_parallel!r} and {timeout!r} s"
            )
        self.lane = tuple(lane)
        self.timeout_s = float(timeout)
        self.build_func = _path_of(build_func)
        # As many as there are CPUs outside the lane; a build on the lane would disturb a timing.
        self.n_steady = min(self.n_parallel, len(other_cpus))
        initializer = "retune.compiler.runtime.threads.affinity:bind_process"
        bound = [
            WorkerProcess(initializer, (other_cpus if lane else (),), _USES_PER_WORKER) for _ in range(self.n_steady)
        ]
        guests = [WorkerProcess(maximum_uses=_USES_PER_WORKER) for _ in range(self.n_parallel - self.n_steady)]
        self._pool = WorkerPool([*bound, *guests], self.n_steady)

    def leaves_alone(self, cpus: Sequence[int]) -> bool:
        """Whether some processes build while programs are timed on `cpus`, none of them on these CPUs."""
        return bool(cpus) and self.n_steady > 0 and set(cpus) <= set(self.lane)

    def build(self, task: SearchTask, candidates: Sequence[Sequence[Step]]) -> list[Measurement]:
        """Build every candidate (the steps of one program each).

        A failed result has status INSTANTIATION (the steps do not apply), COMPILE_HOST or BUILD_TIMEOUT.

        Raises: OptionError when a candidate is no list of steps, MeasureError when the workers cannot work at all.
        """
        for candidate in candidates:
            if not isinstance(candidate, Sequence) or not all(isinstance(step, Step) for step in candidate):
                raise OptionError(f"a candidate is a list of steps, not {candidate!r}")
        return self._pool.map(lambda worker, steps: self._build_one(worker, task, steps), candidates)

    def start(
        self, task: SearchTask, candidates: Sequence[Sequence[Step]]
    ) -> AbstractContextManager[list[Future[Measurement]]]:
        """Begin to build; unfinished builds are ended with the block."""
        return self._pool.start(lambda worker, steps: self._build_one(worker, task, steps), candidates)

    def quiet(self) -> AbstractContextManager[None]:
        """Build nothing on the lane during the block."""
        return self._pool.quiet()

    def stop(self) -> None:
        """From any thread or a signal handler: make the current build and all later builds fail, until `close`."""
        self._pool.stop()

    def close(self) -> None:
        """End the worker processes; a later `build` starts new processes."""
        self._pool.close()

    def _build_one(self, worker: WorkerProcess, task: SearchTask, steps: Sequence[Step]) -> Measurement:
        key = task.identity

        def stream_from(_: int) -> Iterator[object]:
            worker.renew()
            # The task, with its graph, travels once to each process, the steps of a candidate each time.
            if not worker.call(f"{_WORKER}:knows", key, timeout_s=worker.start_timeout_s):
                worker.call(f"{_WORKER}:remember", key, task, self.build_func, timeout_s=worker.start_timeout_s)
            return worker.stream(
                f"{_WORKER}:build_stream", key, self.build_func, [tuple(steps)], timeout_s=self.timeout_s
            )

        # One candidate a stream, so that the pool hands the next candidate to any free process.
        (result,) = collect(1, stream_from, self._failure)
        return result

    def _failure(self, error: WorkerFailedError, seconds: float) -> Measurement:
        if isinstance(error, WorkerTimeoutError):
            text = f"the build took more than {self.timeout_s:g} s"
            return Measurement((), MeasureStatus.BUILD_TIMEOUT, text, seconds)
        return Measurement((), MeasureStatus.COMPILE_HOST, f"the compiler crashed: {error}", seconds)


def _path_of(build_func: Callable[..., KernelArtifact] | str) -> str:
    """The path by which worker processes import a builder function."""
    if build_func == "default":
        return _DEFAULT
    if build_func == "ndk":
        raise NotYetError("code for Android is not built yet; build_func must be 'default' or a function")
    path = build_func
    if not isinstance(path, str):
        path = f"{getattr(path, '__module__', '')}:{getattr(path, '__qualname__', '')}"
    # A worker imports by path: lambdas and nested functions ("f.<locals>.g") have none, and `__main__` is the worker's
    # own.
    module, colon, name = path.partition(":")
    if not (module and colon and name.isidentifier()) or module == "__main__":
        raise OptionError(
            f"build_func must be 'default', a function of a module that other processes can import, or its path "
            f"'package.module:name', not {build_func!r}"
        )
    return path
