"""A URL with a password works everywhere, and shows it nowhere."""

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from retune.compiler.core.errors import StoreError
from retune.flows.cli.commands.fleet import worker
from retune.flows.cli.commands.output import Output
from retune.flows.cli.commands.tune import tune
from retune.flows.cli.worker import LineFormatter
from retune.flows.doctor import services
from retune.flows.doctor.machine import Verdict
from retune.flows.parameters import TuneJob
from retune.storage.parquet import ParquetRecordStore
from retune.storage.store_url import open_blob_store
from tests.support.flows.command_line import run
from tests.support.flows.tuning_logs import line, write

PLACE = """memory://me:s3cr3t'"x@passwords/store"""
SHOWN = "memory://me:***@passwords/store"


def test_what_is_shown_opens_the_same_files_where_the_whole_was_heard_of() -> None:
    with pytest.raises(StoreError, match="without its password"):
        open_blob_store("memory://you:***@passwords/store")
    open_blob_store(PLACE).put({"a": b"1"})
    TuneJob.of("mlp", home=PLACE)
    assert open_blob_store(SHOWN).read("a") == b"1"
    assert open_blob_store(SHOWN).where("a") == f"{SHOWN}/a"


@pytest.mark.usefixtures("folder")
def test_a_job_carries_no_password_and_finds_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETUNE_FLEET_STORAGE", "memory://me:s3cr3t@fleet")
    job = TuneJob.of("mlp", home=PLACE, fleet="prefect")
    assert job.location == SHOWN
    assert "s3cr3t" not in json.dumps([asdict(job), job.parameters(), job.describe()])
    assert ParquetRecordStore(job.location).records() == []
    assert job.plan is not None
    open_blob_store("memory://me:s3cr3t@fleet").put({"b": b"2"})
    assert open_blob_store(job.plan.storage).read("b") == b"2"


@pytest.mark.usefixtures("folder")
def test_no_job_and_no_variable_shows_it_to_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []
    monkeypatch.setattr("retune.flows.cli.launch.use_prefect", lambda *_: None)
    monkeypatch.setattr("retune.flows.cli.commands.tune.run_flow", lambda *arguments: begun.append(arguments))
    monkeypatch.setattr("retune.flows.cli.worker.main", lambda *arguments: begun.append(arguments))
    tune(Output(), "mlp", store=PLACE)
    worker(Output(), storage=PLACE)
    assert "s3cr3t" not in repr(begun)
    assert len(begun) == 2


def test_no_command_shows_it(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "tune.json", [line(0.1)])
    monkeypatch.setenv("PREFECT_API_URL", "http://me:s3cr3t@127.0.0.1:9/api")
    monkeypatch.setenv("RETUNE_FLEET_STORAGE", PLACE)
    assert run(monkeypatch, "records", "import", "tune.json", "--store", PLACE) == 0
    open_blob_store(PLACE).put({"records/target_slug=x/workload=w/.0.tmp": b"left over"})
    for words in (["records", "check"], ["records", "list"], ["runs"]):
        assert run(monkeypatch, *words, "--store", PLACE) == 0
        assert run(monkeypatch, *words, "--json", "--store", PLACE) == 0
    assert run(monkeypatch, "config") == 0
    assert run(monkeypatch, "config", "--json") == 0
    for words in (["records", "show", "NONE"], ["report"], ["fetch"]):
        assert run(monkeypatch, *words, "--store", PLACE) == 2
    assert run(monkeypatch, "runs", "--store", "nonsense://me:s3cr3t@host") == 2
    said = "".join(capsys.readouterr())
    assert "s3cr3t" not in said
    assert SHOWN in said
    assert "http://me:***@127.0.0.1:9/api" in said


class Server(BaseHTTPRequestHandler):
    """Answers requests that name the password."""

    def do_GET(self) -> None:
        self.send_response(200 if self.headers["Authorization"] == "Basic bWU6czNjcjN0" else 401)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_the_doctor_asks_with_it_and_does_not_tell(port: int) -> None:
    well = services.prefect(f"http://me:s3cr3t@127.0.0.1:{port}/api")
    ill = services.prefect(f"http://me:wr0ng@127.0.0.1:{port}/api")
    assert (well.verdict, ill.verdict) == (Verdict.OK, Verdict.FAIL)
    found = [well, ill]
    assert all("me:***@" in one.found for one in found)
    assert not any("s3cr3t" in str(one) or "wr0ng" in str(one) for one in found)


def test_a_worker_does_not_log_it() -> None:
    record = logging.LogRecord("x", logging.WARNING, "", 0, "cannot reach %s", (OSError(f"{PLACE}/queues"),), None)
    assert LineFormatter("%(message)s").format(record) == f"cannot reach {SHOWN}/queues"
