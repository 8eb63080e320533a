"""In: errands from a run on another machine, see `retune.compiler.measure.fleet`. Out: their answers, as messages.

Always: an errand is data; what it may ask for is listed here, and nothing of it is looked up by a name it brings. A
failure of this machine is part of the answer, for the run to try again.
"""

import tempfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Self

from retune.compiler import config
from retune.compiler.codegen.cpu import describe
from retune.compiler.driver.hardware import target_on
from retune.compiler.driver.limits import MachineLimits
from retune.compiler.driver.report import Comparison, Contender
from retune.compiler.errors import DeviceError, MeasureError, RetuneError
from retune.compiler.measure.builder import LocalBuilder
from retune.compiler.measure.cuda_runner import CudaRunner, gpu_here
from retune.compiler.measure.fleet import (
    BUILD_VERB,
    COMPARE_VERB,
    DESCRIBE_VERB,
    LIMITS_VERB,
    TIME_VERB,
    BuiltKernel,
    Courier,
    Objects,
    asked,
    device_queue,
)
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import MeasureStatus
from retune.compiler.measure.results import BuildResult, MeasureResult
from retune.compiler.measure.runner import LocalRunner
from retune.compiler.measure.task_inputs import register_task_input_buffer
from retune.compiler.measure.wire import from_bytes, to_bytes
from retune.compiler.measure.worker_process import WorkerProcess
from retune.compiler.runtime.machine import last_cache_bytes
from retune.compiler.schedule.steps import load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.target import Target

_KEPT_TASKS = 32


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
        """The processor that this process runs on, or the GPU of that number.

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


def compare_on_device(
    courier: Courier, device: str, networks: Mapping[str, Path], model: bytes, threads: int, seed: int
) -> Comparison:
    """`compare_networks` on the device of a fleet. Raises: MeasureError."""
    request = {
        "networks": {name: courier.objects.put(path.read_bytes()) for name, path in networks.items()},
        "model": courier.objects.put(model),
        "threads": threads,
        "seed": seed,
    }
    found = asked(courier, device_queue(device), COMPARE_VERB, request)
    contenders = tuple(Contender(**each) for each in found["contenders"])
    return Comparison(found["reference"], contenders, found["note"], found["tolerance"], found.get("contention"))


def limits_of_device(courier: Courier, device: str, threads: int) -> MachineLimits:
    """`measure_limits` on the device of a fleet. Raises: MeasureError."""
    return MachineLimits(**asked(courier, device_queue(device), LIMITS_VERB, {"threads": threads}))


def refusal(reason: str) -> bytes:
    """The answer to an errand that could not be done."""
    return to_bytes({"error": reason, "value": None})


class Bench:
    """The processes with which a worker builds and times, kept from one errand to the next. For one thread at a time.

    `parallel` programs are built at once, by default one per core. Programs for a GPU run on that of the number `gpu`,
    which is what the bench says that it is, if one is given.
    """

    def __init__(self, parallel: int | None = None, gpu: int | None = None) -> None:
        self._parallel = parallel
        self._gpu = gpu
        self._builders: dict[float, LocalBuilder] = {}
        self._runner: tuple[tuple[MeasureOptions, bool], LocalRunner] | None = None
        self._comparing = WorkerProcess()
        self._tasks: OrderedDict[str, SearchTask] = OrderedDict()
        self._verbs: Mapping[str, Callable[[Mapping[str, Any], Objects], Any]] = {
            BUILD_VERB: self._build,
            TIME_VERB: self._time,
            COMPARE_VERB: self._compare_networks,
            DESCRIBE_VERB: lambda *_: asdict(DeviceFacts.of_this_machine(self._gpu)),
            LIMITS_VERB: self._measure_limits,
        }

    def answer(self, verb: str, message: bytes, objects: Objects) -> bytes:
        """Do an errand. An error of this machine, or a request that makes no sense, is the answer."""
        try:
            if verb not in self._verbs:
                raise MeasureError(f"a worker was asked to {verb!r}; it knows {', '.join(self._verbs)}")
            return to_bytes({"error": "", "value": self._verbs[verb](from_bytes(message), objects)})
        except RetuneError as error:
            return refusal(f"{config.host_name()}: {error}")
        except (KeyError, TypeError, ValueError, OSError, MemoryError) as error:
            return refusal(f"{config.host_name()}: {verb} failed: {type(error).__name__}: {error}")

    def stop(self) -> None:
        """From any thread or a signal handler: make the errand in progress and all later ones fail, until `close`."""
        for builder in list(self._builders.values()):
            builder.stop()
        if self._runner is not None:
            self._runner[1].stop()
        self._comparing.stop()

    def close(self) -> None:
        """End the processes."""
        self._comparing.close()
        for builder in self._builders.values():
            builder.close()
        self._builders.clear()
        if self._runner is not None:
            self._runner[1].close()
            self._runner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build(self, request: Mapping[str, Any], objects: Objects) -> list[tuple[Any, ...]]:
        task = self._task(request["task"], objects)
        candidates = [tuple(load_steps(text)) for text in request["steps"]]
        timeout = float(request["timeout"])
        if timeout not in self._builders:
            self._builders[timeout] = LocalBuilder(timeout, self._parallel)
        return [astuple(_kept(build, objects)) for build in self._builders[timeout].build(task, candidates)]

    def _time(self, request: Mapping[str, Any], objects: Objects) -> list[MeasureResult] | None:
        task = self._task(request["task"], objects)
        kernels = [from_bytes(objects.get(name)) for name in request["kernels"]]
        builds = [BuildResult(kernel, MeasureStatus.OK, "", 0.0) for kernel in kernels]
        for name, array in request["inputs"].items():
            register_task_input_buffer(task.workload_key, name, array, overwrite=True)
        runner = self._runner_for(request["options"], gpu=task.target.is_gpu)
        if request["fresh"]:
            runner.restart()
        if request["turns"]:
            return runner.compare(task, builds, request["turns"])
        return runner.run(task, builds, request["best"])

    def _compare_networks(self, request: Mapping[str, Any], objects: Objects) -> Any:
        """Time compiled networks, by name, beside ONNX Runtime: the fields of a `Comparison`."""
        with tempfile.TemporaryDirectory(prefix="retune-") as folder, self._comparing as worker:
            paths: dict[str, Path] = {}
            for number, (name, key) in enumerate(request["networks"].items()):
                paths[name] = Path(folder) / f"{number}.retune"
                paths[name].write_bytes(objects.get(key))
            compare = "retune.compiler.driver.compare:compare_networks"
            model = objects.get(request["model"])
            return asdict(worker.call(compare, paths, model, request["threads"], request["seed"]))

    def _measure_limits(self, request: Mapping[str, Any], _: Objects) -> Any:
        """What this machine can do at best: the fields of `MachineLimits`."""
        with self._comparing as worker:
            return asdict(worker.call("retune.compiler.driver.limits:measure_limits", request["threads"]))

    def _runner_for(self, options: MeasureOptions, *, gpu: bool) -> LocalRunner:
        """What times on this machine's processor or a GPU. Raises: DeviceError when there is no such GPU."""
        key = options, gpu
        if self._runner is None or self._runner[0] != key:
            if self._runner is not None:
                self._runner[1].close()
                self._runner = None
            runner = CudaRunner(options, self._gpu or 0) if gpu else LocalRunner(options=options)
            if isinstance(runner, CudaRunner):
                try:
                    runner.check()
                except DeviceError:
                    runner.close()
                    raise
            self._runner = key, runner
        return self._runner[1]

    def _task(self, name: str, objects: Objects) -> SearchTask:
        if name not in self._tasks:
            task = from_bytes(objects.get(name))
            if not isinstance(task, SearchTask):
                raise MeasureError(f"the object {name} is no task")
            self._tasks[name] = task
            while len(self._tasks) > _KEPT_TASKS:
                self._tasks.popitem(last=False)
        return self._tasks[name]


def _kept(build: BuildResult, objects: Objects) -> BuiltKernel:
    """The object code goes to the shared storage, its name into the answer."""
    name = None if build.artifact is None else objects.put(to_bytes(build.artifact))
    return BuiltKernel(name, build.status, build.error, build.seconds)

