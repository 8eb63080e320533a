"""Tasks that verify the best programs, in fresh processes, by their outputs and times, before they are used."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from retune.compiler.frontend.network import network_bytes
from retune.compiler.measure.processes.device_lock import device_key, device_lock
from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.measure.record import TaskProgram
from retune.compiler.schedule.task import SampledShape, SearchTask
from retune.compiler.tune.limits import MachineLimits
from retune.compiler.tune.precision.request import PrecisionRequest
from retune.compiler.tune.report import Comparison
from retune.compiler.tune.winners import Confirmation, confirm_fastest, time_again
from retune.compiler.tune.worker_service import DeviceFacts, compare_on_device, limits_of_device
from retune.tasks.chain import task_name
from retune.tasks.fleet.engines import FlowEngine
from retune.tasks.fleet.plan import FleetPlan
from retune.tasks.fleet.workers import Workers


@task(name="time-again", task_run_name="time-again-{name}", cache_policy=NO_CACHE)
def time_programs(
    name: str, workers: Workers, search_task: SearchTask, programs: Sequence[TaskProgram]
) -> Confirmation:
    """Time a task's best programs again, in turn with the default schedule; build those not kept."""
    return time_again(search_task, programs, workers.builder, workers.runner, workers.kept)


@task(name="confirm", task_run_name="confirm", cache_policy=NO_CACHE)
def confirm(workers: Workers, timed: Sequence[Confirmation]) -> list[Confirmation]:
    """Check the fastest program of each task once more in a fresh process, and choose the winner."""
    return confirm_fastest(timed, workers.runner)


@task(name="describe-device", task_run_name="describe-{device}", cache_policy=NO_CACHE)
def describe_device(device: str, plan: FleetPlan) -> DeviceFacts:
    """Ask a worker of a fleet's device for its machine. Raises: MeasureError when no worker answers."""
    return DeviceFacts.of_device(FlowEngine(plan=plan), device)


@task(name="verify", task_run_name=task_name("verify", "network"), cache_policy=NO_CACHE)
def verify(
    network: str,
    compiled: Mapping[str, Path],
    threads: int,
    seed: int,
    plan: FleetPlan | None = None,
    gpu: int | None = None,
    instances: int = 1,
    precision: PrecisionRequest | None = None,
    shapes: Sequence[SampledShape] = (),
) -> Comparison:
    """Compare compiled networks, by name, with each other and with ONNX Runtime: outputs, and the time of so many
    `instances` that run at a time. With a plan that is done on the device of a fleet, with one instance; `gpu` is the
    number of this machine's GPU that the networks are for. `precision` says how far outputs may be off where layers
    are in other precisions than float32; networks of dynamic shapes are compared at `shapes`.
    """
    model = network_bytes(network)
    if plan is not None:
        return compare_on_device(FlowEngine(plan=plan), plan.device, compiled, model, threads, seed)
    with device_lock(device_key(gpu)), WorkerProcess() as worker:
        # A fresh process: a network that crashes ends it alone, and no thread of the run disturbs the timing.
        compare = "retune.compiler.tune.compare:compare_networks"
        comparison: Comparison = worker.call(
            compare, dict(compiled), model, threads, seed, instances, precision, shapes
        )
    return comparison


@task(name="choose-instances", task_run_name=task_name("choose-instances", "network"), cache_policy=NO_CACHE)
def measure_instances(network: str, compiled: Mapping[int, Path], threads: int, seed: int) -> int:
    """How many instances of a network, compiled for each of some numbers of them, do most in a second on this CPU."""
    with device_lock(), WorkerProcess() as worker:
        choose = "retune.compiler.tune.compare:choose_instances"
        instances: int = worker.call(choose, dict(compiled), threads, seed)
    return instances


@task(name="measure-limits", task_run_name="measure-limits", cache_policy=NO_CACHE)
def limits_of_machine(threads: int, plan: FleetPlan | None = None) -> MachineLimits:
    """What the CPU of this machine, or the device of a fleet, can do at best on so many threads, for the report to
    compare with.
    """
    if plan is not None:
        return limits_of_device(FlowEngine(plan=plan), plan.device, threads)
    with device_lock(), WorkerProcess() as worker:
        limits: MachineLimits = worker.call("retune.compiler.tune.limits:measure_limits", threads)
    return limits
