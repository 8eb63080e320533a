"""A worker of this machine times for a script, is replaced when it is killed, and does not outlive the script."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from retune.compiler import config
from retune.compiler.cost_model.random import RandomModel
from retune.compiler.errors import MeasureError
from retune.compiler.measure.builder import LocalBuilder
from retune.compiler.measure.fleet import FleetRunner, device_queue
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import MeasureStatus
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.target import HardwareParams, Target
from retune.storage.errands import ErrandStore
from retune.tasks import local_fleet
from retune.tasks.local_fleet import LocalFleet
from tests.unit.search.workloads import matmul

KEY = "local-test"
QUEUE = device_queue(KEY)


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalFleet]:
    monkeypatch.setattr(local_fleet, "SILENCE_SECONDS", 3.0)
    with LocalFleet(KEY) as made:
        yield made


def wait_until(holds: Callable[[], bool], seconds: float) -> None:
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit, f"not within {seconds:g} s"
        time.sleep(0.02)


def kill_at_work(pid: int, store: ErrandStore) -> None:
    """Kill a worker in the middle of an errand."""
    wait_until(lambda: any(one.claimed and not one.is_answered for one in store.standings(QUEUE).values()), 240)
    os.kill(pid, signal.SIGKILL)


def test_a_worker_that_is_killed_at_work_is_replaced_and_every_program_is_timed(fleet: LocalFleet) -> None:
    task = SearchTask("matmul", matmul(64, 64, 64), Target.host(), HardwareParams(num_cores=1))
    steps = [candidate.steps for candidate in SketchPolicy(task, RandomModel()).ask(12, 0)]
    with LocalBuilder(n_parallel=1) as builder:
        builds = builder.build(task, steps)
    runner = FleetRunner(fleet.courier, KEY, MeasureOptions(repeat=3, min_repeat_ms=50), at_once=4)
    first = fleet.pid
    assert first is not None
    store = ErrandStore(f"{fleet.folder}/errands")
    killer = threading.Thread(target=kill_at_work, args=(first, store))
    killer.start()
    results = runner.run(task, builds)
    killer.join()
    assert [result.status for result in results] == [MeasureStatus.OK] * 12
    assert all(result.costs for result in results)
    assert fleet.pid != first
    runner.close()


def test_it_ends_with_the_script_however_that_ends() -> None:
    script = (
        "import sys, time\n"
        "from retune.tasks.local_fleet import LocalFleet\n"
        "fleet = LocalFleet('local-test')\n"
        "assert 'prefect' not in sys.modules\n"
        "print(fleet.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = config.child_environment({"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)})
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert psutil.pid_exists(pid)
        process.kill()
    wait_until(lambda: not psutil.pid_exists(pid), 240)


def test_a_worker_that_cannot_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(MeasureError, match="ended with code 1 before it began"):
        LocalFleet(KEY)


def test_a_worker_that_does_not_begin_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    silent = tmp_path / "python"
    silent.write_text(f"#!/bin/sh\necho $$ > {tmp_path / 'pid'}\nexec sleep 600\n")
    silent.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(silent))
    monkeypatch.setattr(local_fleet, "START_SECONDS", 0.2)
    with pytest.raises(MeasureError, match="has not begun within"):
        LocalFleet(KEY)
    if (tmp_path / "pid").exists():  # else it was ended before its first line
        assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
