"""SIGTERM, and Cancel on a Prefect server, end a run within seconds; what was stored stays, and the run goes on. A
worker that is killed on a server is noticed.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling

from retune.compiler.core import config
from retune.storage.runs import RunLedger
from tests.support.flows.fleet_workers import wait_until
from tests.support.flows.networks import write_mlp
from tests.support.flows.runs import command, environment_on, has_session, processes_of, rounds, run_processes, stored
from tests.support.flows.servers import free_port, server
from tests.support.tiers import long_except

ROOT = Path(__file__).parent.parent.parent
MESSAGE = "retune: stopped; finished rounds are kept, and the same command goes on from there"
SECONDS = 120.0


@pytest.mark.parametrize("wanted", long_except([0], [0, 2]))
def test_sigterm_ends_a_run_with_one_sentence(tmp_path: Path, wanted: int) -> None:
    """While it starts, and after two rounds; only the process itself gets the signal."""
    network, home, log = write_mlp(tmp_path / "small.onnx"), tmp_path / "state", tmp_path / "log.txt"
    environment = environment_on(home)
    with log.open("wb") as stream:
        process = subprocess.Popen(command(network, home), stdout=stream, stderr=stream, env=environment)
    try:
        wait_until(lambda: has_session(process) and rounds(home) >= wanted, 300.0)
        assert process.poll() is None, log.read_text()
        open_to = {connection.laddr.ip for connection in listening(home)}
        assert open_to <= {"127.0.0.1"}
        assert open_to or not wanted, "Prefect's API listens"
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 143, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert log.read_text().splitlines()[-1] == MESSAGE
    assert len(stored(home)) >= wanted
    wait_until(lambda: processes_of(home) == [], 120.0)


@contextmanager
def worker(settings: Mapping[str, str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A Prefect worker of cpu-pool."""
    start = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "cpu-pool"]
    with log.open("ab") as stream:
        process = subprocess.Popen(start, env=dict(settings), cwd=ROOT, stdout=stream, stderr=stream)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(120)


def parents() -> list[FlowRun]:
    """The runs that somebody asked for, the oldest first."""
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs()
    asked = (run for run in found if run.deployment_id and not run.auto_scheduled)
    return sorted(asked, key=lambda run: str(run.created))


class Desk:
    """Where somebody sits who starts and watches runs on a Prefect server."""

    def __init__(self, home: Path, api: str, **settings: str) -> None:
        self.home = home
        self.settings = config.child_environment(
            {
                "PREFECT_API_URL": api,
                "RETUNE_ROOT": str(ROOT),
                "RETUNE_HOME": str(home),
                "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
                **settings,
            }
        )

    def run(self, *words: str) -> None:
        """Run a command to its end."""
        done = subprocess.run(
            [sys.executable, "-m", *words],
            env=self.settings,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def prepare(self) -> None:
        """Pools, limits and deployments."""
        self.run("retune.flows.cli.app", "pools")
        self.run("prefect", "--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")

    def ask(self, network: Path) -> None:
        """Ask for a run."""
        limits = ("--param", "trials=120", "--param", "threads=1", "--param", "batch=8")
        self.run("prefect", "deployment", "run", "tune-network/cpu", "--param", f"network={network}", *limits)


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_api")
def test_cancel_ends_a_run_on_a_worker_and_the_same_request_goes_on(tmp_path: Path) -> None:
    network, home = write_mlp(tmp_path / "small.onnx"), tmp_path / "state"
    desk = Desk(home, str(PREFECT_API_URL.value()))
    desk.prepare()
    with worker(desk.settings, tmp_path / "worker.txt"):
        desk.ask(network)
        wait_until(lambda: rounds(home) >= 2, 180.0)
        (asked,) = parents()
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(asked.id, Cancelling())
        wait_until(lambda: parents()[0].state_name == "Cancelled", 60.0)
        wait_until(lambda: children_of(home) == [], 120.0)
        kept = {record.record_id for record in stored(home)}
        assert len(kept) >= 16
        desk.ask(network)
        wait_until(lambda: len(parents()) == 2 and parents()[1].state_name in ("Completed", "Failed"), 300.0)
    assert parents()[1].state_name == "Completed", (tmp_path / "worker.txt").read_text()
    see_that_it_went_on(home, kept)


def see_that_it_went_on(home: Path, kept: set[str]) -> None:
    """One run, to its end, with all that was stored before and nothing twice."""
    records = stored(home)
    (ledger,) = RunLedger(home).list()
    assert ledger.is_complete
    assert ledger.resumed
    assert kept <= {record.record_id for record in records}
    assert len(records) == 120
    assert Counter((record.task_key, record.steps) for record in records).most_common(1)[0][1] == 1


@pytest.mark.slow
def test_killed_worker_does_not_block_the_pool(tmp_path: Path) -> None:
    """Its run is marked as crashed when its heartbeats stop; the next one, which waited for it, goes on."""
    network, home, port = write_mlp(tmp_path / "small.onnx"), tmp_path / "state", free_port()
    api, log = f"http://127.0.0.1:{port}/api", tmp_path / "worker.txt"
    desk = Desk(home, api, PREFECT_FLOWS_HEARTBEAT_FREQUENCY="30")
    with server(tmp_path / "prefect", port), temporary_settings({PREFECT_API_URL: api}):
        desk.prepare()
        with worker(desk.settings, log) as first:
            desk.ask(network)
            wait_until(lambda: rounds(home) >= 2, 180.0)
            for process in [*psutil.Process(first.pid).children(recursive=True), psutil.Process(first.pid)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            first.wait()
        kept = {record.record_id for record in stored(home)}
        desk.ask(network)
        with worker(desk.settings, log):
            wait_until(lambda: parents()[0].state_name == "Crashed", 300.0)
            wait_until(lambda: parents()[1].state_name in ("Completed", "Failed"), 300.0)
        assert parents()[1].state_name == "Completed", log.read_text()
    see_that_it_went_on(home, kept)


def listening(home: Path) -> list[Any]:
    """The sockets that the processes of a run on the embedded API of `home` accept connections on."""
    found = []
    for process in run_processes(home):
        with suppress(psutil.Error):
            found += [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    return found


def children_of(home: Path) -> list[str]:
    """The processes that build or time for a run of `home`."""
    found = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
            if process.environ().get("RETUNE_HOME") == str(home) and "worker_main" in line:
                found.append(line)
        except psutil.Error:
            continue
    return found
