"""kill -9 at any moment and the same command again: nothing stored is lost, nothing is measured twice, the run goes
on.
"""

import json
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL

from retune.storage.runs import RunLedger
from tests.support.flows.networks import write_mlp
from tests.support.flows.runs import PATIENCE_SECONDS, TRIALS, kill_when, run_processes, started, stored


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.usefixtures("prefect_api")
def test_a_run_killed_around_its_choice_of_precisions_goes_on_with_one_choice(tmp_path: Path) -> None:
    home, log = tmp_path / "state", tmp_path / "log.txt"
    network, api = write_mlp(tmp_path / "small.onnx", (128, 256, 64)), PREFECT_API_URL.value()
    options = "--precision", "auto", "--tolerance", "0.1"

    def kill_at(is_reached: Callable[[], bool]) -> None:
        with started(network, home, log, api, options) as process:
            limit = time.monotonic() + PATIENCE_SECONDS
            while not is_reached() and process.poll() is None and time.monotonic() < limit:
                time.sleep(0.02)
            assert process.poll() is None, log.read_text()
            process.send_signal(signal.SIGKILL)
            process.wait()

    kill_at(lambda: log.exists() and "choosing precisions" in log.read_text())
    (run,) = RunLedger(home).list()
    assert run.precision is None
    kill_at(lambda: RunLedger(home).get(run.run_id).precision is not None)
    chosen = RunLedger(home).get(run.run_id).precision
    with started(network, home, log, api, options) as process:
        assert process.wait(PATIENCE_SECONDS) == 0, log.read_text()
    (done,) = RunLedger(home).list()
    assert done.is_complete
    assert (done.run_id, done.precision) == (run.run_id, chosen)
    assert not list(home.rglob("*.tmp*"))


@pytest.mark.long
def test_the_embedded_api_does_not_outlive_a_kill_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, home, log, temporary = (tmp_path / name for name in ("small.onnx", "state", "log.txt", "temporary"))
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    kill_when(write_mlp(network), home, log, api=None, wanted=1, delay=0.0)
    limit = time.monotonic() + 120
    while (left := list(run_processes(home))) and time.monotonic() < limit:
        time.sleep(0.1)
    assert left == []
    assert not (home / "prefect").exists()
    assert [path.suffix for path in temporary.iterdir()] == [".lock"]
