"""In: what measures programs elsewhere: on the devices of a fleet, or in a process of this machine that was started for
it. Out: runners for `TuningOptions`.

Always: programs run in a process of their own, here too, so a measurement never harms the one who asks for it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from compiler import config
from compiler.driver.bench import DeviceFacts
from compiler.errors import NotYetError, OptionError
from compiler.measure.fleet import DESCRIBE_VERB, Courier, FleetRunner, asked, device_queue
from compiler.measure.options import MeasureOptions
from compiler.measure.results import BuildResult, MeasureResult
from compiler.measure.runner import LocalRunner
from compiler.measure.worker_main import resolve
from compiler.schedule.task import SearchTask

_COURIER = "tasks.rpc:prefect_courier"
"""(host, port, priority) -> Courier: by name, since the compiler knows nothing of Prefect."""


class RPCRunner(FleetRunner):
    """Times programs on the devices of a fleet whose workers were started with `retune worker --device KEY`.

    TVM's tracker is Prefect's server here: `host` and `port` are its address, `key` that of the device, and programs go
    by the storage that the fleet shares (RETUNE_FLEET_STORAGE, by default fleet/ in the state folder). Programs with a
    larger `priority` are timed first; `n_parallel` chunks of programs are on their way at once, which helps as far as
    that many devices have the key. What a lost worker was timing is timed by another one. The other parameters are
    those of `LocalRunner`; programs run on as many threads as the device has cores. `device` must be 0, the processor.

    Raises: OptionError when the server does not answer; MeasureError when no worker serves the key; NotYetError for
    another device.
    """

    def __init__(
        self,
        key: str,
        host: str,
        port: int,
        priority: int = 1,
        n_parallel: int = 1,
        timeout: float = 10,
        number: int = 3,
        repeat: int = 1,
        min_repeat_ms: float = 100,
        cooldown_interval: float = 0.0,
        enable_cpu_cache_flush: bool = False,
        device: int = 0,
    ) -> None:
        _require_processor(device)
        if n_parallel < 1:
            raise OptionError(f"n_parallel must be at least 1, not {n_parallel}")
        options = MeasureOptions(
            run_timeout_s=timeout,
            number=number,
            repeat=repeat,
            min_repeat_ms=min_repeat_ms,
            cooldown_interval=cooldown_interval,
            enable_cpu_cache_flush=enable_cpu_cache_flush,
        )
        courier: Courier = resolve(_COURIER)(host, port, priority)
        self.facts = DeviceFacts(**asked(courier, device_queue(key), DESCRIBE_VERB, {}))
        super().__init__(courier, key, replace(options, threads=self.facts.cores), in_flight=n_parallel)

    def run(
        self, task: SearchTask, builds: Sequence[BuildResult], best_seconds: float | None = None
    ) -> list[MeasureResult]:
        """As `LocalRunner.run`. Raises: OptionError when the programs are for this machine and the device is another
        one; MeasureError.
        """
        if not task.target.cpu and self.facts.device != config.device_name():
            raise OptionError(
                f"{task.name} is for this machine, and {self.key} is another one: make its task with "
                f"target={self.facts.target!r}"
            )
        return super().run(task, builds, best_seconds)


class LocalRPCMeasureContext:
    """A `runner` for this machine, in a process of its own, which ends with the context or its `with` block.

    `device` must be 0, the processor. `priority` and `n_parallel` are those of a fleet: here programs are timed one
    after the other. The other parameters are those of `LocalRunner`.
    """

    def __init__(
        self,
        priority: int = 1,
        n_parallel: int = 1,
        timeout: float = 10,
        number: int = 3,
        repeat: int = 1,
        min_repeat_ms: float = 0,
        cooldown_interval: float = 0.0,
        enable_cpu_cache_flush: bool = False,
        device: int = 0,
    ) -> None:
        """Raises: NotYetError for another device."""
        del priority, n_parallel
        _require_processor(device)
        self.runner = LocalRunner(timeout, number, repeat, min_repeat_ms, cooldown_interval, enable_cpu_cache_flush)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.runner.close()

    def __del__(self) -> None:
        if hasattr(self, "runner"):
            self.runner.close()


def _require_processor(device: int) -> None:
    if device:
        raise NotYetError(f"programs cannot be measured on device {device} yet, only on the processor, which is 0")
