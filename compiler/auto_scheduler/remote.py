"""In: what measures programs elsewhere: on the devices of a fleet, or by a worker of this machine that is started for
it. Out: runners for `TuningOptions`.

Always: both are runners of a fleet, so what a lost worker was timing is timed again; programs run in a process of their
own, here too, so a measurement never harms the one who asks for it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, Self

from retune import FLEETS
from retune.compiler import config
from retune.compiler.driver.bench import DeviceFacts
from retune.compiler.errors import NotYetError, OptionError
from retune.compiler.measure.fleet import DESCRIBE_VERB, Courier, FleetRunner, asked, device_queue
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.results import BuildResult, MeasureResult
from retune.compiler.measure.worker_main import resolve
from retune.compiler.schedule.task import SearchTask
from retune.compiler.target import Target

LOCAL_KEY = "local-cpu"
"""The device of a worker that is started for a script."""


class _LocalFleet(Protocol):
    """A worker of this machine, and the way to it."""

    courier: Courier

    def close(self) -> None:
        """End the worker."""
        ...


class RPCRunner(FleetRunner):
    """Times programs on the devices of a fleet whose workers were started with `retune worker --device KEY`.

    TVM's tracker is Prefect's server here: `host` and `port` are its address, `key` that of the device, and programs go
    by the storage that the fleet shares (RETUNE_FLEET_STORAGE, by default fleet/ in the state folder). Programs with a
    larger `priority` are timed first; `n_parallel` chunks of programs are on their way at once, which helps as far as
    that many devices have the key. What a lost worker was timing is timed by another one. The other parameters are
    those of `LocalRunner`; programs run on as many threads as the device has cores. `device` must be 0: a worker times
    on one device, and that of the key cuda:1 on that GPU.

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
        options = _checked_options(
            device, n_parallel, timeout, number, repeat, min_repeat_ms, cooldown_interval, enable_cpu_cache_flush
        )
        courier: Courier = resolve(FLEETS["server"])(host, port, priority)
        self.facts = _facts_of(courier, key)
        super().__init__(courier, key, replace(options, threads=self.facts.cores), in_flight=n_parallel)

    def run(
        self, task: SearchTask, builds: Sequence[BuildResult], best_seconds: float | None = None
    ) -> list[MeasureResult]:
        """As `LocalRunner.run`. Raises: OptionError when the programs are for this machine, or another kind of device,
        and the device is another one; MeasureError.
        """
        check_target(task, self.facts, self.key)
        return super().run(task, builds, best_seconds)


def check_target(task: SearchTask, facts: DeviceFacts, key: str) -> None:
    """See that the programs of a task are for a device of a fleet. Raises: OptionError."""
    advice = f"make its task with target={facts.target!r}"
    there = Target(facts.target)
    if task.target.kind != there.kind:
        nouns = task.target.traits.noun, there.traits.noun
        raise OptionError(f"{task.name} is for {nouns[0]}, and {key} is {nouns[1]}: {advice}")
    is_named = task.target.arch or task.target.cpu
    if not is_named and facts.device != config.device_name():
        raise OptionError(f"{task.name} is for this machine, and {key} is another one: {advice}")


class LocalRPCMeasureContext:
    """A `runner` as `RPCRunner`, for a worker of this machine that is started for it and ends with the context or its
    `with` block, or with this process. No server is needed.

    The parameters are those of `RPCRunner`. A worker that is killed is replaced, and what it was timing is timed again.
    There is one worker, so `n_parallel` says only how many chunks wait for it.
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
        """Raises: NotYetError for another device; OptionError; MeasureError when the worker does not start."""
        options = _checked_options(
            device, n_parallel, timeout, number, repeat, min_repeat_ms, cooldown_interval, enable_cpu_cache_flush
        )
        self._fleet: _LocalFleet = resolve(FLEETS["local"])(LOCAL_KEY, priority)
        try:
            facts = _facts_of(self._fleet.courier, LOCAL_KEY)
        except BaseException:
            self._fleet.close()
            raise
        self.runner = FleetRunner(
            self._fleet.courier, LOCAL_KEY, replace(options, threads=facts.cores), in_flight=n_parallel
        )

    def close(self) -> None:
        """End the worker; the runner is of no use after that."""
        self.runner.close()
        self._fleet.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "runner"):
            self._fleet.close()


def _checked_options(
    device: int,
    n_parallel: int,
    timeout: float,
    number: int,
    repeat: int,
    min_repeat_ms: float,
    cooldown_interval: float,
    enable_cpu_cache_flush: bool,
) -> MeasureOptions:
    """The options of a runner. Raises: NotYetError, OptionError."""
    if device:
        raise NotYetError(f"device {device}: a worker times on one alone, number 0; cuda:{device} is the key of a GPU")
    if n_parallel < 1:
        raise OptionError(f"n_parallel must be at least 1, not {n_parallel}")
    return MeasureOptions(
        run_timeout_s=timeout,
        number=number,
        repeat=repeat,
        min_repeat_ms=min_repeat_ms,
        cooldown_interval=cooldown_interval,
        enable_cpu_cache_flush=enable_cpu_cache_flush,
    )


def _facts_of(courier: Courier, key: str) -> DeviceFacts:
    """What a worker of the key says of its machine. Raises: MeasureError."""
    return DeviceFacts(**asked(courier, device_queue(key), DESCRIBE_VERB, {}))
