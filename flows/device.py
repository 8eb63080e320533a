"""The device of a job: what a GPU or a fleet's device says of itself, and the task runner that reaches the fleet.

A job for the CPU of this machine passes through unchanged.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

from prefect import Flow, flow

from retune.compiler.core.errors import OptionError
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import target_on
from retune.compiler.measure.remote.fleet import BUILD, device_queue, require_scheduler
from retune.compiler.measure.runner import gpu_here
from retune.compiler.tune.worker_service import DeviceFacts
from retune.flows.parameters import TuneJob
from retune.tasks.fleet.engines import engine_errors, task_runner_of
from retune.tasks.fleet.plan import FleetPlan, fleet_of
from retune.tasks.verify import describe_device

Given = ParamSpec("Given")
Result = TypeVar("Result")


def resolve_device(job: TuneJob) -> TuneJob:
    """Fill in what the job's device says of itself: target, cores and cache of a fleet's device, or name and
    architecture of this machine's GPU, if any. What was asked for stays.

    Raises: MeasureError when no worker serves the device; TargetError when the GPU runs no code for the target;
    OptionError when that is for a GPU and the device is none, or the other way round.
    """
    if job.gpu is not None:
        device = gpu_here(job.gpu)
        if device is None:  # which is said where the first program would be launched
            return job
        options = replace(job.options, target=str(target_on(Target(job.target), device)))
        return replace(job, machine=device.identity, options=options)
    if job.plan is None:
        return job
    facts = with_task_runner(describe_on, job)(job.plan.device, job.plan)
    target = _target_on(job.target, facts.target, job.plan.device)
    options = replace(job.options, target=target, threads=job.threads or facts.cores)
    return replace(job, options=options, machine=facts.device, cache_bytes=facts.cache_bytes)


def _target_on(asked: str, has: str, device: str) -> str:
    """The target that was asked for, on a fleet's device with the target `has`; that one's GPU where none is named."""
    if not asked:
        return has
    wanted, there = Target(asked), Target(has)
    if wanted.kind != there.kind:
        raise OptionError(
            f"the device {device} is {there.traits.noun}: it does not time programs for {wanted}; name another device"
        )
    if wanted.arch or not there.arch:
        return asked
    return str(Target(wanted.kind, arch=there.arch, math=wanted.math))


def with_task_runner(plain: Flow[Given, Result], job: TuneJob) -> Callable[Given, Result]:
    """The flow with the task runner that reaches the job's fleet, if any. Raises: OptionError; when called,
    MeasureError where the fleet fails.
    """
    plan = job.plan
    if plan is None:
        return plain
    runner = task_runner_of(plan.kind, (BUILD, device_queue(plan.device)))
    # At run time: a runner in the decorator would import Dask for every run.
    reaching = plain.with_options(task_runner=runner)

    def call(*args: Given.args, **named: Given.kwargs) -> Result:
        with engine_errors(plan.kind):
            _, address = fleet_of(plan.kind)
            if address:
                require_scheduler(address)
            return reaching(*args, **named)

    return call


@flow(name="describe-device", flow_run_name="describe-{device}")
def describe_on(device: str, plan: FleetPlan) -> DeviceFacts:
    """Ask the device of a fleet what it is."""
    return describe_device(device, plan)
