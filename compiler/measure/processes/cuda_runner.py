"""Times GPU programs in a worker process.

Only the worker process uses CUDA, so a kernel that breaks its context breaks nothing else; the right answers are those
of the default schedule on the CPU.
"""

import re
from dataclasses import replace
from typing import Self

from retune.compiler.codegen.backend import backend_of
from retune.compiler.core.config import usable_cpus
from retune.compiler.core.errors import DeviceError
from retune.compiler.core.target import Target
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.measure.runner import LocalRunner
from retune.compiler.runtime.cuda.driver_interface import GpuDevice
from retune.compiler.schedule.task import SearchTask

_KEY = re.compile(r"cuda([:-](?P<number>\d+))?")


class CudaRunner(LocalRunner):
    """Times kernels on GPU number `gpu` (CUDA's) of this machine.

    `options` mean the same as on a CPU, except `threads`, `rotate_bytes` and those about other processes;
    `enable_cpu_cache_flush` empties the GPU's own cache before each call.
    """

    worker = "retune.compiler.measure.processes.cuda_worker"
    uses_threads = False

    def __init__(self, options: MeasureOptions, gpu: int = 0) -> None:
        self.gpu = gpu
        # All CPUs compute the right answers; programs are built before or after that.
        super().__init__(replace(options, threads=len(usable_cpus()), overlap=False))

    @classmethod
    def of(cls, options: MeasureOptions, gpu: int = 0) -> Self:
        return cls(options, gpu)

    def _initial_arguments(self) -> tuple[object, ...]:
        return self.cpus, self.gpu

    def _reference_task(self, task: SearchTask) -> SearchTask:
        host = Target.host()
        return replace(task, target=host, hardware=backend_of(host).hardware(host, self.options.threads))

    def check(self) -> None:
        """Check that there is a GPU to time programs on. Raises: DeviceError saying what is missing."""
        missing = self._worker.call(f"{self.worker}:missing", self.gpu, timeout_s=self._worker.start_timeout_s)
        if missing:
            raise DeviceError(missing)


RUNNERS: dict[str, type[LocalRunner]] = {"cpu": LocalRunner, "cuda": CudaRunner}
"""The runner of each kind of device that a target may name."""


def runner_for(target: Target, options: MeasureOptions, gpu: int = 0) -> LocalRunner:
    """A runner on the target's kind of device, or on GPU number `gpu`, once the device is known to exist.

    Raises: DeviceError when there is no such GPU.
    """
    runner = RUNNERS[target.traits.device].of(options, gpu)
    try:
        runner.check()
    except DeviceError:
        runner.close()
        raise
    return runner


def gpu_here(number: int) -> GpuDevice | None:
    """GPU number `number` of this machine, examined in a process of its own; None when it cannot be used."""
    with WorkerProcess() as worker:
        device: GpuDevice | None = worker.call(
            f"{CudaRunner.worker}:described", number, timeout_s=worker.start_timeout_s
        )
    return device


def gpu_of_key(key: str) -> int | None:
    """The number of the GPU of a fleet's device key: 1 for cuda:1 (or cuda-1), 0 for cuda; None for other keys."""
    match = _KEY.fullmatch(key)
    return int(match.group("number") or 0) if match else None
