"""kill -9 at any moment and the same command again: nothing stored is lost, nothing is measured twice, the run goes
on.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from prefect.settings import PREFECT_API_URL

from retune.compiler import config
from retune.compiler.measure.record import MeasureRecord
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import RunLedger
from tests.flows.networks import write_mlp

TRIALS = 24
PATIENCE_SECONDS = 240.0


def command(network: Path, home: Path) -> list[str]:
    options = ["--trials", str(TRIALS), "--threads", "1", "--store", str(home)]
    return [sys.executable, "-P", "-m", "retune.flows.launch", "retune.flows.cli", "tune", str(network), *options]


@contextmanager
def started(network: Path, home: Path, log: Path, api: str | None) -> Iterator["subprocess.Popen[bytes]"]:
    """The command in a process of its own; with `api`, on that Prefect server, else on an embedded one."""
    extra = {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    environment = config.child_environment({**extra, **({"PREFECT_API_URL": api} if api else {})})
    for name in () if api else ("PREFECT_HOME", "PREFECT_PROFILES_PATH"):
        environment.pop(name)
    with log.open("ab") as stream:
        process = subprocess.Popen(command(network, home), stdout=stream, stderr=stream, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def stored(home: Path) -> list[MeasureRecord]:
    return ParquetRecordStore(home).records()


def rounds(home: Path) -> int:
    return len({(record.run_id, record.round) for record in stored(home)})


def kill_when(network: Path, home: Path, log: Path, api: str | None, wanted: int, delay: float) -> set[str]:
    """Start the command, kill it `delay` seconds after `wanted` rounds are stored, and return what was stored by
    then.
    """
    with started(network, home, log, api) as process:
        limit = time.monotonic() + PATIENCE_SECONDS
        while rounds(home) < wanted and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.05)
        time.sleep(delay)
        before = {record.record_id for record in stored(home)}
        assert process.poll() is None, f"the run ended before it was killed:\n{log.read_text()}"
        process.send_signal(signal.SIGKILL)
        process.wait()
    return before


@pytest.mark.usefixtures("prefect_api")
def test_a_killed_run_goes_on_and_nothing_is_lost_or_measured_twice(tmp_path: Path) -> None:
    network, home, log = write_mlp(tmp_path / "small.onnx"), tmp_path / "state", tmp_path / "log.txt"
    api = PREFECT_API_URL.value()
    acknowledged: set[str] = set()
    acknowledged |= kill_when(network, home, log, api, wanted=0, delay=3.0)  # while it starts
    acknowledged |= kill_when(network, home, log, api, wanted=1, delay=0.3)  # within a round
    with started(network, home, log, api) as process:
        assert process.wait(PATIENCE_SECONDS) == 0, log.read_text()
    records = stored(home)
    (run,) = RunLedger(home).list()
    assert acknowledged
    assert acknowledged <= {record.record_id for record in records}
    assert Counter((record.task_key, record.steps) for record in records).most_common(1)[0][1] == 1
    assert {record.run_id for record in records} == {run.run_id}
    assert len(records) == TRIALS
    assert run.is_complete
    assert run.resumed
    clock = [record.elapsed for record in records]
    assert clock == sorted(clock)
    report = json.loads((home / "runs" / run.run_id / "report.json").read_text())
    assert report["is_right"]
    assert report["trials"] == TRIALS


def test_the_embedded_api_lives_in_the_state_folder_and_does_not_outlive_a_kill(tmp_path: Path) -> None:
    network, home, log = write_mlp(tmp_path / "small.onnx"), tmp_path / "state", tmp_path / "log.txt"
    kill_when(network, home, log, api=None, wanted=1, delay=0.0)
    assert (home / "prefect" / "prefect.db").exists()
    limit = time.monotonic() + 20
    while (left := processes_of(home)) and time.monotonic() < limit:
        time.sleep(0.1)
    assert left == []


def processes_of(home: Path) -> list[str]:
    """The command lines of all processes that use the embedded API of `home`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PREFECT_HOME") == str(home / "prefect"):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found
