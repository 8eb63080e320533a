"""Runners of `TuningOptions` outside of this process: on devices of a fleet, or in a worker of this machine.

`RPCRunner` times on a fleet, `LocalRPCMeasureContext` in a worker process. Programs never run in the process that asks,
so they cannot harm it; what a lost worker was timing is timed again.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from typing import Any

from retune.compiler.core import config
from retune.compiler.core.closing import Closing
from retune.compiler.core.errors import MeasureError, NotYetError, OptionError, RetuneError, install_hint
from retune.compiler.core.target import Target
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import Measurement
from retune.compiler.measure.remote.fleet import (
    CONNECT_SECONDS,
    FleetRunner,
    Patience,
    Pending,
    Request,
    require_scheduler,
)
from retune.compiler.measure.remote.wire import from_bytes, to_bytes
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tune.worker_service import DeviceFacts, WorkerService, serve
from retune.compiler.tvm.auto_scheduler.measure import InputRunner

LOCAL_KEY = "local-cpu"
"""The device of a worker that is started for a script."""
# A poll asks Dask's scheduler for its workers: one request a second from each waiting run.
POLL_SECONDS = 1.0
"""How often a script that waits looks whether anybody serves its device."""
# Clusters may start machines on demand, which takes minutes.
PATIENCE_SECONDS = 300.0
"""So long a script waits for a worker of its device."""


class DaskEngine:
    """Requests as tasks of a Dask cluster, placed by resources that are named after the queues."""

    def __init__(self, address: str, priority: int = 1) -> None:
        """Raises: OptionError when no scheduler answers, or the package is not installed."""
        try:
            distributed: Any = import_module("distributed")
        except ImportError as error:
            raise OptionError(f"workers of Dask need the package distributed: {install_hint('dask')}") from error
        self._priority = priority
        try:
            require_scheduler(address)
            # Not the default client: the script may use a cluster of its own.
            self._client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except OSError as error:
            raise OptionError(str(error) or f"no scheduler of Dask answers at {address}") from error

    def submit(self, queue: str, request: Request, name: str = "") -> Pending:
        """See `Engine`."""
        message, placed = to_bytes(request), {queue: 1}
        # pure=False: Dask would give the answer of an equal request again, and times are no function of it.
        future = self._client.submit(serve, queue, message, resources=placed, priority=self._priority, pure=False)
        return _DaskRequest(self._client, queue, future, name)

    def close(self) -> None:
        """Leave the cluster."""
        self._client.close()


class _DaskRequest:
    """A task of a Dask cluster."""

    def __init__(self, client: Any, queue: str, future: Any, name: str) -> None:
        self._client, self._queue, self._future, self._name = client, queue, future, name

    def result(self) -> Any:
        """See `Pending`."""
        patience = Patience(self._queue, PATIENCE_SECONDS)
        while True:
            try:
                return from_bytes(self._future.result(timeout=POLL_SECONDS))
            except TimeoutError:
                workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
                patience.check(is_served=any(self._queue in worker["resources"] for worker in workers))
            except RetuneError:
                raise
            except Exception as error:  # of Dask: its scheduler is gone, or too many workers were
                raise MeasureError(
                    f"Dask gave a request for {self._queue} up ({type(error).__name__}: {error})"
                ) from error

    def cancel(self) -> None:
        """Let the cluster forget the task."""
        self._future.cancel()


class ServiceEngine:
    """Requests to a service of this process."""

    def __init__(self, service: WorkerService, at_once: int) -> None:
        self._service = service
        self._threads = ThreadPoolExecutor(at_once, "service")

    def submit(self, queue: str, request: Request, name: str = "") -> Pending:  # noqa: ARG002 - an engine has queues
        """See `Engine`."""
        return self._threads.submit(self._service.do, request)

    def close(self) -> None:
        """End the processes of the service, and what they do."""
        self._service.close()
        self._threads.shutdown(cancel_futures=True)


class RPCRunner(InputRunner, FleetRunner):
    """Times programs on the devices of a fleet on Dask, whose workers were started with
    `retune worker --fleet dask://HOST:PORT --device KEY`.

    TVM's tracker is the scheduler of Dask here: `host` and `port` are its address, `key` that of the device. Programs
    with a larger `priority` are timed first; `n_parallel` chunks of programs are on their way at once, which helps as
    far as that many devices have the key. What a lost worker was timing is timed by another one. The other parameters
    are those of `LocalRunner`; programs run on as many threads as the device has cores. `device` must be 0: a worker
    times on one device, and that of the key cuda:1 on that GPU.

    Raises: OptionError when the scheduler does not answer, and when programs are for another device; MeasureError when
    no worker serves the key; NotYetError for another number of the device.
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
            device,
            n_parallel,
            run_timeout_s=timeout,
            number=number,
            repeat=repeat,
            min_repeat_ms=min_repeat_ms,
            cooldown_interval=cooldown_interval,
            enable_cpu_cache_flush=enable_cpu_cache_flush,
        )
        self._dask = DaskEngine(f"tcp://{host}:{port}", priority)
        try:
            self.facts = DeviceFacts.of_device(self._dask, key)
        # A client that is not closed keeps its threads and its connection.
        except BaseException:
            self._dask.close()
            raise
        super().__init__(self._dask, key, replace(options, threads=self.facts.cores), in_flight=n_parallel)

    def close(self) -> None:
        """Leave the cluster. The workers belong to no run and go on."""
        self._dask.close()

    def _submit(self, task: SearchTask, builds: Sequence[Measurement], **more: Any) -> Pending:
        check_target(task, self.facts, self.key)
        return super()._submit(task, builds, **more)


def check_target(task: SearchTask, facts: DeviceFacts, key: str) -> None:
    """Check that the programs of a task are for a device of a fleet. Raises: OptionError."""
    advice = f"make its task with target={facts.target!r}"
    there = Target(facts.target)
    if task.target.kind != there.kind:
        nouns = task.target.traits.noun, there.traits.noun
        raise OptionError(f"{task.name} is for {nouns[0]}, and {key} is {nouns[1]}: {advice}")
    # "llvm" alone means the machine of the script, whose code may not run on the device.
    is_named = task.target.arch or task.target.cpu
    if not is_named and facts.device != config.device_name():
        raise OptionError(f"{task.name} is for this machine, and {key} is another one: {advice}")


class LocalRPCRunner(RPCRunner):
    """A runner of a worker that is started for it, which serves the GPUs of this machine too."""

    close, _submit = FleetRunner.close, FleetRunner._submit

    def __init__(self, engine: ServiceEngine, options: MeasureOptions, n_parallel: int) -> None:
        FleetRunner.__init__(self, engine, LOCAL_KEY, options, in_flight=n_parallel)


class LocalRPCMeasureContext(Closing):
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
        """Raises: NotYetError for another device; OptionError."""
        options = _checked_options(
            device,
            n_parallel,
            run_timeout_s=timeout,
            number=number,
            repeat=repeat,
            min_repeat_ms=min_repeat_ms,
            cooldown_interval=cooldown_interval,
            enable_cpu_cache_flush=enable_cpu_cache_flush,
        )
        del priority  # this worker has one client
        self._engine = ServiceEngine(WorkerService(is_shared=True), n_parallel)
        options = replace(options, threads=config.usable_cores())
        self.runner = LocalRPCRunner(self._engine, options, n_parallel)

    def close(self) -> None:
        """End the worker; the runner is of no use after that."""
        self._engine.close()

    # As TVM's: scripts end it by dropping their last reference.
    def __del__(self) -> None:
        if hasattr(self, "_engine"):
            self._engine.close()


def _checked_options(device: int, n_parallel: int, **options: Any) -> MeasureOptions:
    """The options of a runner. Raises: NotYetError, OptionError."""
    if device:
        raise NotYetError(f"device {device}: a worker times on one alone, number 0; cuda:{device} is the key of a GPU")
    if n_parallel < 1:
        raise OptionError(f"n_parallel must be at least 1, not {n_parallel}")
    return MeasureOptions(**options)
