"""The service of a worker: builds programs, times kernels, describes its device.

A request is data (`retune.compiler.measure.remote.fleet`); nothing of it is looked up by a name that it brings.
"""

import math
import tempfile
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from retune.compiler.codegen.cpu import describe
from retune.compiler.core import config
from retune.compiler.core.closing import Closing
from retune.compiler.core.config import usable_cpus
from retune.compiler.core.errors import DeviceError, MeasureError, RetuneError
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import target_on
from retune.compiler.measure.builder import LocalBuilder
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.processes.device_lock import device_key, device_lock
from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.measure.record import Measurement
from retune.compiler.measure.remote.fleet import (
    BUILD,
    BuildRequest,
    CompareRequest,
    DescribeRequest,
    Engine,
    LimitsRequest,
    Request,
    TimeRequest,
    ask,
    device_queue,
)
from retune.compiler.measure.remote.wire import from_bytes, to_bytes
from retune.compiler.measure.runner import RUNNERS, LocalRunner, gpu_here, gpu_of_key, runner_for
from retune.compiler.measure.task_inputs import register_task_input_buffer, special_inputs
from retune.compiler.runtime.threads.affinity import choose_cpus, last_cache_bytes
from retune.compiler.tune.limits import MachineLimits
from retune.compiler.tune.report import Comparison, Contender


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a run must know of the machine it tunes for: the device's identity in records, a target that means the same
    on every machine, cores, and bytes of the last cache.
    """

    device: str
    target: str
    cores: int
    cache_bytes: int

    @classmethod
    def of_this_machine(cls, gpu: int | None = None) -> Self:
        """The CPU that this process runs on, or the GPU of that number.

        Raises: DeviceError when there is no such GPU.
        """
        if gpu is not None:
            device = gpu_here(gpu)
            if device is None:
                raise DeviceError(f"there is no GPU number {gpu} here that can be used; retune doctor says why")
            target = target_on(Target("cuda"), device)
            return cls(device.identity, str(target), config.usable_cores(), device.facts.cache)
        triple, cpu, features = describe(Target.host())
        target = Target("llvm", triple=triple, cpu=cpu, features=features)
        return cls(config.device_name(), str(target), config.usable_cores(), last_cache_bytes())

    @classmethod
    def of_device(cls, engine: Engine, key: str) -> Self:
        """What a worker of the key says of its machine. Raises: MeasureError."""
        return cls(**ask(engine, device_queue(key), DescribeRequest()))


def compare_on_device(
    engine: Engine, device: str, networks: Mapping[str, Path], model: bytes, threads: int, seed: int
) -> Comparison:
    """`compare_networks` on the device of a fleet. Raises: MeasureError."""
    contents = {name: path.read_bytes() for name, path in networks.items()}
    answer = ask(engine, device_queue(device), CompareRequest(contents, model, threads, seed))
    contenders = tuple(Contender(**each) for each in answer["contenders"])
    return Comparison(answer["reference"], contenders, answer["note"], answer["tolerance"], answer.get("contention"))


def limits_of_device(engine: Engine, device: str, threads: int) -> MachineLimits:
    """`measure_limits` on the device of a fleet. Raises: MeasureError."""
    return MachineLimits(**ask(engine, device_queue(device), LimitsRequest(threads)))


class WorkerService(Closing):
    """The processes with which a worker builds and times, kept from one request to the next.

    Any number of threads may ask for builds; what times is done one at a time, and `is_shared` says that it holds the
    device's lock meanwhile. `parallel` programs are built at once, by default one per core. Programs for a GPU run on
    that of the number `gpu`, which is also the device that the service describes, if given.
    """

    def __init__(self, parallel: int | None = None, gpu: int | None = None, *, is_shared: bool = False) -> None:
        self.gpu = gpu
        self._parallel = parallel
        self._is_shared = is_shared
        self._builders: dict[tuple[float, int, bool], LocalBuilder] = {}
        self._runner: tuple[tuple[MeasureOptions, str], LocalRunner] | None = None
        self._comparing = WorkerProcess()
        self._opening, self._timing = threading.Lock(), threading.Lock()
        self._round: tuple[str, float] = "", math.inf

    def do(self, request: Request) -> Any:
        """The answer to a request. Raises: MeasureError, OptionError, DeviceError."""
        if isinstance(request, BuildRequest):
            return self.builder(request.options, request.task.target.traits.device).build(
                request.task, request.candidates
            )
        # The thread lock first, so that one thread of a process at most waits for the device.
        with self._timing, device_lock(device_key(self.gpu)) if self._is_shared else nullcontext():
            match request:
                case TimeRequest():
                    return self._time(request)
                case CompareRequest():
                    return self._compare_networks(request)
                case LimitsRequest():
                    with self._comparing as worker:
                        return asdict(worker.call("retune.compiler.tune.limits:measure_limits", request.threads))
                case DescribeRequest():
                    return asdict(DeviceFacts.of_this_machine(self.gpu))
        raise MeasureError(f"a worker was asked for {request!r:.80}, which is no request")

    def builder(self, options: MeasureOptions, device: str) -> LocalBuilder:
        """What builds here while nothing is timed on the same CPUs; `device` is the kind that kernels are for."""
        key = options.build_timeout_s, options.threads, options.overlap and RUNNERS[device].uses_threads
        with self._opening:
            if key not in self._builders:
                timing = (choose_cpus(options.threads) if key[2] else ()) or usable_cpus()
                self._builders[key] = LocalBuilder(options.build_timeout_s, self._parallel, lane=timing)
            return self._builders[key]

    def overlaps(self, options: MeasureOptions) -> bool:
        """Whether programs for the service's device are built while others are timed."""
        return self.builder(options, "cpu" if self.gpu is None else "cuda").n_steady > 0

    def stop(self) -> None:
        """From any thread or a signal handler: make requests in progress and all later requests fail, until `close`."""
        for builder in list(self._builders.values()):
            builder.stop()
        if self._runner is not None:
            self._runner[1].stop()
        self._comparing.stop()

    def close(self) -> None:
        """End the processes, and what they do."""
        self.stop()
        with self._timing, self._opening:
            self._comparing.close()
            for builder in self._builders.values():
                builder.close()
            self._builders.clear()
            if self._runner is not None:
                self._runner[1].close()
                self._runner = None

    def _time(self, request: TimeRequest) -> list[Measurement] | None:
        task, device = request.task, request.task.target.traits.device
        known = {task.dag.inputs[index].name: array for index, array in special_inputs(task).items()}
        for name, array in request.inputs.items():
            if name not in known or not np.array_equal(known[name], array):
                register_task_input_buffer(task.workload_key, name, array, overwrite=True)
        builds = [Measurement(artifact=kernel) for kernel in request.kernels]
        runner = self._runner_for(request.options, task.target)
        if request.fresh:
            runner.restart()
        best = min(request.best, self._round[1]) if request.round and self._round[0] == request.round else request.best
        with self.builder(request.options, device).quiet():
            if request.passes:
                return runner.compare(task, builds, request.passes)
            times = runner.run(task, builds, best)
        # Chunks of one round arrive one by one: those that follow give up as early as if they were one batch.
        self._round = request.round, min([best, *(cost for time in times for cost in time.costs)])
        return [replace(time, artifact=None) for time in times]

    def _compare_networks(self, request: CompareRequest) -> Any:
        with tempfile.TemporaryDirectory(prefix="retune-") as folder, self._comparing as worker:
            paths: dict[str, Path] = {}
            for number, (name, content) in enumerate(request.networks.items()):
                paths[name] = Path(folder) / f"{number}.retune"
                paths[name].write_bytes(content)
            compare = "retune.compiler.tune.compare:compare_networks"
            return asdict(worker.call(compare, paths, request.model, request.threads, request.seed))

    def _runner_for(self, options: MeasureOptions, target: Target) -> LocalRunner:
        """What times on this machine's CPU or a GPU. Raises: DeviceError when there is no such GPU."""
        key = options, target.traits.device
        if self._runner is None or self._runner[0] != key:
            if self._runner is not None:
                self._runner[1].close()
                self._runner = None
            self._runner = key, runner_for(target, options, self.gpu or 0)
        return self._runner[1]


class _Process:
    """The service of this process when it is a worker of a fleet: it serves one device, and may build."""

    def __init__(self) -> None:
        self._opening = threading.Lock()
        self._service: WorkerService | None = None
        self.parallel: int | None = None

    def service(self, queue: str) -> WorkerService:
        """The service, for the device of a queue."""
        with self._opening:
            self._service = self._service or WorkerService(self.parallel, is_shared=True)
            if queue != BUILD:
                self._service.gpu = gpu_of_key(queue.removeprefix(device_queue("")))
            return self._service

    def use(self, service: WorkerService) -> None:
        """Serve with a service of another kind."""
        self._service = service

    def close(self) -> None:
        """End the processes of the service, and what they do."""
        with self._opening:
            if self._service is not None:
                self._service.close()
                self._service = None


THIS_PROCESS = _Process()


def serve(queue: str, request: bytes) -> bytes:
    """Answer a message in a worker of a fleet, which holds the queue's device while it times.

    Raises: MeasureError, with the name of this machine, for any failure: the engine takes it to the run.
    """
    try:
        return to_bytes(THIS_PROCESS.service(queue).do(from_bytes(request)))
    except RetuneError as error:
        raise MeasureError(f"{config.host_name()}: {error}") from None
    except (KeyError, TypeError, ValueError, OSError, MemoryError) as error:
        raise MeasureError(f"{config.host_name()}: {type(error).__name__}: {error}") from None
