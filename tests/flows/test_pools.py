"""`retune pools` on a Prefect server: what it makes, and what follows the frequency of heartbeats."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from prefect import get_client
from prefect.client.schemas.objects import WorkPool
from prefect.events.schemas.automations import Automation, EventTrigger
from prefect.server.events import triggers
from prefect.server.events.schemas.automations import Automation as Loaded
from prefect.server.events.schemas.automations import EventTrigger as LoadedTrigger
from prefect.server.events.schemas.automations import Firing
from prefect.server.events.schemas.events import ReceivedEvent
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from retune.flows.cli import pools
from retune.flows.cli.commands.output import Mode

pytestmark = pytest.mark.usefixtures("prefect_api")


def made() -> tuple[Automation, WorkPool]:
    """The automation and a pool as the server has them."""

    async def read() -> tuple[Automation, WorkPool]:
        async with get_client() as client:
            (automation,) = await client.read_automations_by_name(pools.CRASHES)
            return automation, await client.read_work_pool("cpu-pool")

    return asyncio.run(read())


def frequency(pool: WorkPool) -> object:
    return pool.base_job_template["variables"]["properties"]["env"]["default"][pools.FREQUENCY]


def seconds(automation: Automation) -> float:
    assert isinstance(automation.trigger, EventTrigger)
    return automation.trigger.within.total_seconds()


def test_heartbeats_of_pools_and_the_patience_for_them_change_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert pools.main(Mode.PEOPLE, []) == 0
    automation, pool = made()
    assert (frequency(pool), seconds(automation)) == ("30", 90)
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: 60}):
        capsys.readouterr()
        assert pools.main(Mode.PEOPLE, []) == 0
    said = capsys.readouterr().out
    assert "after 180 s" in said
    assert "work pool cpu-pool: a heartbeat every 60 s" in said
    changed, pool = made()
    assert changed.id == automation.id
    assert (frequency(pool), seconds(changed)) == ("60", 180)
    assert pools.main(Mode.PEOPLE, []) == 0
    capsys.readouterr()
    assert pools.main(Mode.PEOPLE, []) == 0
    assert capsys.readouterr().out == "everything was there already\n"
    assert (frequency(made()[1]), seconds(made()[0])) == ("30", 90)


# Not in the past: a server that shares the database sweeps periods that have ended.
START = datetime.now(UTC) + timedelta(days=1)


def event(name: str, after: float, run: str, flow: str, deployment: str = "prefect.deployment.1") -> ReceivedEvent:
    related = [
        {"prefect.resource.id": "prefect.flow.1", "prefect.resource.role": "flow", "prefect.resource.name": flow},
        {"prefect.resource.id": deployment, "prefect.resource.role": deployment.split(".")[1]},
    ]
    resource = {"prefect.resource.id": f"prefect.flow-run.{run}"}
    moment = START + timedelta(seconds=after)
    named = {"event": f"prefect.flow-run.{name}", "resource": resource, "related": related, "id": uuid4()}
    return ReceivedEvent.model_validate({**named, "occurred": moment, "received": moment})


def test_a_killed_run_is_crashed_after_ninety_seconds_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events and a clock of ours; the triggers are those of Prefect's server."""
    pools.main(Mode.QUIET, [])
    fired: list[str] = []

    async def note(firing: Firing) -> None:
        fired.extend(firing.triggering_labels.values())

    async def none() -> float:
        return 0.0

    monkeypatch.setattr(triggers, "act", note)
    monkeypatch.setattr(triggers, "get_events_clock_offset", none)
    names = {key: f"{key}-{uuid4()}" for key in ("killed", "done", "within", "terminal", "other")}

    async def play() -> list[list[str]]:
        automation = Loaded.model_validate(made_automation.model_dump(mode="json"))
        triggers.load_automation(automation)
        (trigger,) = automation.triggers_of_type(LoadedTrigger)
        try:
            for after in (0.0, 30.0):
                for key, flow in (("killed", "tune-network"), ("done", "retune-stale"), ("within", "allocate-trials")):
                    await triggers.reactive_evaluation(event("heartbeat", after, names[key], flow))
            await triggers.reactive_evaluation(event("heartbeat", 30, names["other"], "flow of others"))
            mine = event("heartbeat", 30, names["terminal"], "tune-network", "prefect.tag.1")
            await triggers.reactive_evaluation(mine)
            await triggers.reactive_evaluation(event("Completed", 45, names["done"], "retune-stale"))
            seen = []
            for after in (119, 121, 1000):
                await triggers.proactive_evaluation(trigger, event("none", after, "", "").occurred)
                seen.append([*fired])
            return seen
        finally:
            triggers.clear_loaded_automations()

    made_automation = made()[0]
    killed = [f"prefect.flow-run.{names['killed']}"]
    assert asyncio.run(play()) == [[], killed, killed]
