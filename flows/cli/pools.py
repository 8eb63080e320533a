"""The command `retune pools`: creates the work pools, queues, limits and automation that the deployments need.

What exists stays as it is, so a second call changes nothing, and settings made by a person are kept. What follows the
heartbeats is brought up to date: their time in the environment of a pool's runs, and the automation's patience.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectAlreadyExists
from prefect.settings import PREFECT_API_URL, get_current_settings
from prefect.workers.process import ProcessWorker

from retune.compiler.measure.processes.device_lock import lock_name
from retune.flows.cli import exits
from retune.flows.cli.commands.output import Mode, Output, complain
from retune.flows.server.run_server import server_errors
from retune.tasks.fleet.device_limit import ensure_limit


@dataclass(frozen=True, slots=True)
class Pool:
    """A work pool for flows in processes. Runs in the queue `high` start before others."""

    name: str
    """Its name on the server."""
    slots: int
    """Flow runs at once on all its workers together."""
    description: str
    """What people read of it in Prefect's UI."""


POOLS = (
    Pool(
        # One: two runs on one machine would time beside each other.
        "cpu-pool", 1,
        "Runs that time programs on the CPU of the worker's machine: one at a time, for undisturbed timings.",
    ),
    Pool(
        "fleet-pool", 8,
        "Runs whose programs are built and timed by the workers of a fleet, and jobs that time nothing.",
    ),
    Pool("gpu-pool", 1, "Runs that time programs on the GPU of the worker's machine, one at a time."),
)  # fmt: skip

QUEUES = {"high": 1, "default": 2}
"""The queues of every pool and their priorities; 1 goes first."""


CRASHES = "retune: runs whose heartbeats stop have crashed"
"""The automation that ends runs of workers that were killed. A deployment whose runs wait for each other would wait for
them for ever.
"""

# A single late heartbeat must not end a run that is alive.
MISSED_HEARTBEATS = 3
"""So many must be missing."""
HEARTBEAT_SECONDS = 30
"""Seconds between heartbeats, the least that Prefect allows. Its default of 180 would keep the slot of a killed run for
nine minutes.
"""
FREQUENCY = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY"
WATCHED = ["tune-network", "tune-operator", "compile-network", "retune-stale", "train-cost-model", "compact-records"]
"""The flows that are deployed. Those within them hold no slot; short flows end while their first heartbeat is still on
its way, and the automation would fire for them.
"""

_BEAT = "prefect.flow-run.heartbeat"
_ENDS = {f"prefect.flow-run.{end}" for end in ("Completed", "Failed", "Cancelled", "Crashed")}


def crash_automation(heartbeat_seconds: float) -> AutomationCore:
    """The automation, for runs that send a heartbeat every so many seconds."""
    return AutomationCore(
        name=CRASHES,
        description="A run that neither ends nor sends heartbeats is marked as crashed; the next one may begin.",
        trigger=EventTrigger(
            after={_BEAT},
            expect={_BEAT, *_ENDS},
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            # Runs in a terminal, and flows of others, may send heartbeats less often.
            match_related=[
                ResourceSpecification({"prefect.resource.role": ["flow"], "prefect.resource.name": WATCHED}),
                ResourceSpecification({"prefect.resource.role": ["deployment"]}),
            ],
            for_each={"prefect.resource.id"},
            # Proactive triggers fire when what is expected does not come; a run that is killed with -9 says nothing
            # itself.
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=MISSED_HEARTBEATS * heartbeat_seconds),
        ),
        actions=[
            ChangeFlowRunState(
                name="Crashed", state=StateType.CRASHED, message="Its heartbeats have stopped.", force=False
            )
        ],
    )


def heartbeat_seconds() -> int | None:
    """Seconds between heartbeats: what the user has set, None for none at all, else `HEARTBEAT_SECONDS`."""
    flows = get_current_settings().flows
    return flows.heartbeat_frequency if "heartbeat_frequency" in flows.model_fields_set else HEARTBEAT_SECONDS


async def make_automation(seconds: int | None) -> list[str]:
    """Create the automation, or have it wait for heartbeats of so many seconds; a line for what was done."""
    if seconds is None:
        return []
    wanted = crash_automation(seconds)
    async with get_client() as client:
        known = await client.read_automations_by_name(CRASHES)
        if not known:
            await client.create_automation(wanted)
        elif known[0].trigger.model_dump() != wanted.trigger.model_dump():
            changed = known[0].model_copy(update={"trigger": wanted.trigger})
            await client.update_automation(
                known[0].id, AutomationCore.model_validate(changed.model_dump(exclude={"owner_resource"}))
            )
        else:
            return []
    return [f"automation {CRASHES!r}: after {MISSED_HEARTBEATS * seconds} s"]


async def make_pools(seconds: int | None) -> list[str]:
    """Create what is missing; a line for each thing that was created, and for a pool of a person's, or of a worker that
    began too early, which lets any number of runs time at once. Runs send a heartbeat every so many `seconds`.
    """
    made: list[str] = []
    async with get_client() as client:
        # As `prefect work-pool create` does: without it deployments have no job variables to set.
        template = ProcessWorker.get_default_base_job_template()
        _set_frequency(template, seconds)
        for pool in POOLS:
            wanted = WorkPoolCreate(
                name=pool.name,
                type=ProcessWorker.type,
                description=pool.description,
                base_job_template=template,
                concurrency_limit=pool.slots,
            )
            if await _is_new(client.create_work_pool(wanted)):
                made.append(f"work pool {pool.name}: {pool.slots} at once")
            else:
                known = await client.read_work_pool(pool.name)
                if known.concurrency_limit is None:
                    how = f"prefect work-pool set-concurrency-limit {pool.name} {pool.slots}"
                    made.append(
                        f"work pool {pool.name} was there, without a limit of runs at once: `{how}` gives it one"
                    )
                if _set_frequency(known.base_job_template, seconds):
                    await client.update_work_pool(pool.name, WorkPoolUpdate(base_job_template=known.base_job_template))
                    made.append(f"work pool {pool.name}: a heartbeat every {seconds} s")
            for queue, priority in QUEUES.items():
                if await _made_queue(client, pool.name, queue, priority):
                    made.append(f"queue {queue} of {pool.name}")
    return made


def _set_frequency(template: dict[str, Any], seconds: int | None) -> bool:
    """Have runs of a pool with this template send heartbeats so often. Whether that changed the template."""
    default = template["variables"]["properties"]["env"].setdefault("default", {})
    before = default.get(FREQUENCY)
    default[FREQUENCY] = None if seconds is None else str(seconds)
    return bool(before != default[FREQUENCY])


async def _made_queue(client: PrefectClient, pool: str, queue: str, priority: int) -> bool:
    return await _is_new(client.create_work_queue(name=queue, work_pool_name=pool, priority=priority))


async def _is_new(creation: Awaitable[object]) -> bool:
    try:
        await creation
    except ObjectAlreadyExists:
        return False
    return True


def main(mode: Mode, devices: list[str]) -> int:
    """Create everything; `devices` are those of this machine that get a limit. Returns the exit code."""
    if not PREFECT_API_URL.value():
        complain("set PREFECT_API_URL to the address of a Prefect server first")
        return exits.USER_ERROR
    with server_errors():
        seconds = heartbeat_seconds()
        made = asyncio.run(make_pools(seconds)) + asyncio.run(make_automation(seconds))
        for device in devices:
            if ensure_limit(lock_name(device)):
                made.append(f"limit {lock_name(device)}: one at a time")
    output = Output(mode is Mode.JSON, mode is Mode.QUIET)
    for line in made:
        output.say(line, made=line)
    if not made and output.is_for_people:
        output.say("everything was there already")
    return exits.OK
