"""What can go wrong with a run, done to real processes. After each fault and the same command again: nothing that was
acknowledged is lost, nothing is measured twice, and the run ends where an undisturbed one with the same seed ends.

The times are made up (`benchmarks.simulated`), so that the ends can be compared record by record.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from prefect.settings import PREFECT_API_URL

from benchmarks.simulated import command
from retune.compiler.core import config
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import RunLedger
from tests.support.flows.simulated_runs import BATCH, PATIENCE_SECONDS, TRIALS, Lab, Outcome, outcome
from tests.support.record_samples import part_paths


@pytest.fixture
def lab(tmp_path: Path, prefect_api: None) -> Lab:  # noqa: ARG001
    return Lab(tmp_path, str(PREFECT_API_URL.value()))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, prefect_api: None) -> Outcome:  # noqa: ARG001
    """How a run ends that nothing happens to."""
    lab = Lab(tmp_path_factory.mktemp("undisturbed"), str(PREFECT_API_URL.value()))
    lab.finish()
    found = outcome(lab.home)
    assert len(found) == TRIALS
    assert len({task for _, task, *_ in found}) == 2
    assert len({number for number, *_ in found}) == TRIALS / BATCH
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_ended_twice(lab: Lab, undisturbed: Outcome, number: int) -> None:
    assert lab.stop_after(2, number, pause=0.2) != 0
    assert lab.stop_after(5, number, pause=0.2) != 0
    lab.finish()
    assert outcome(lab.home) == undisturbed
    (run,) = RunLedger(lab.home).list()
    assert run.is_complete
    assert len(run.resumed) == 2


@pytest.mark.slow
def test_a_run_on_an_object_store_that_is_killed(lab: Lab, undisturbed: Outcome, s3_place: str) -> None:
    """Another process takes it over at once, since it can check that the owner is gone."""
    lab.store = s3_place
    lab.stop_after(3, signal.SIGKILL, pause=0.2)
    lab.finish()
    assert outcome(s3_place) == undisturbed
    (run,) = RunLedger(s3_place).list()
    assert run.is_complete
    assert len(run.resumed) == 1
    assert not (lab.home / "records").exists()


@pytest.mark.slow
def test_workers_that_are_killed(lab: Lab, undisturbed: Outcome) -> None:
    """All processes that build, then the one that times; the run does not even stop."""
    told = lab.folder / "workers.json"

    def kill(kind: str) -> bool:
        found = json.loads(told.read_text() or "{}") if told.exists() else {}
        pids = [found.get(kind)] if kind == "run" else found.get(kind, [])
        alive = [pid for pid in pids if pid and psutil.pid_exists(pid)]
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        return bool(alive)

    with lab.started(is_real=True, workers=str(told), pause=0.1) as process:
        for kind in ("build", "run", "build", "run"):
            lab.wait_for(process, lambda kind=kind: kill(kind))  # type: ignore[misc]
            time.sleep(0.3)
        assert process.wait(PATIENCE_SECONDS) == 0, lab.log.read_text()
    found = outcome(lab.home)
    assert {status for *_, status in found} == {"OK"}
    assert [one[:3] for one in found][:BATCH] == [one[:3] for one in undisturbed][:BATCH]
    assert len(found) == TRIALS
    quiet = Lab(lab.folder, lab.api, "quiet")
    quiet.finish(is_real=True)
    assert found == outcome(quiet.home)


@pytest.mark.long
def test_a_damaged_file_is_set_aside_and_the_run_goes_on(lab: Lab) -> None:
    lab.stop_after(4, signal.SIGKILL, pause=0.2)
    before = lab.stored()
    bad = part_paths(lab.home)[1]
    lost = {record.record_id for record in ParquetRecordStore(lab.home).records() if record.round == 1}
    data = bytearray(bad.read_bytes())
    data[len(data) // 3] ^= 0xFF
    bad.write_bytes(data)
    lab.finish()
    refuge = lab.home / "quarantine" / bad.relative_to(lab.home)
    assert f"set aside an unreadable file as {refuge}" in lab.log.read_text()
    assert len(outcome(lab.home)) == TRIALS
    assert {record.record_id for record in before} - lost <= {record.record_id for record in lab.stored()}
    assert lost.isdisjoint(record.record_id for record in lab.stored())


@pytest.mark.slow
@pytest.mark.parametrize(
    "moves", [{"2": 86_400.0, "5": -86_400.0}, {"0": 4e8, "3": 0.001}, {"1": -4e8}], ids=["both", "ahead", "back"]
)
def test_a_clock_that_jumps(lab: Lab, undisturbed: Outcome, moves: dict[str, float]) -> None:
    lab.stop_after(4, signal.SIGKILL, pause=0.2, clock=moves)
    lab.finish(clock={"2": -3600.0})
    assert outcome(lab.home) == undisturbed
    first = lab.stored()
    lab.finish()  # a new run: whatever the clock said, it knows what was measured
    records = lab.stored()
    assert len(records) > len(first)
    assert max(Counter((record.task_key, record.steps) for record in records).values()) == 1
    lab.finish()
    records = lab.stored()
    assert max(Counter((record.task_key, record.steps) for record in records).values()) == 1
    assert all(run.is_complete for run in RunLedger(lab.home).list())


@pytest.mark.slow
def test_two_runs_on_one_store_at_once(lab: Lab, undisturbed: Outcome) -> None:
    """Two seeds are two runs that end as each would alone; one more with the same seed is refused with a sentence."""
    other = Lab(lab.folder, lab.api, seed=1)
    gate = lab.folder / "gate"
    with lab.started(gate=str(gate), pause=0.05) as first, other.started(gate=str(gate), pause=0.05) as second:
        limit = time.monotonic() + PATIENCE_SECONDS
        while sum(run.horizon is not None for run in RunLedger(lab.home).list()) < 2 and time.monotonic() < limit:
            time.sleep(0.05)
        same = Lab(lab.folder, lab.api, seed=0)
        refused = subprocess.run(
            command(same.simulation()),
            env=config.child_environment(same.environment),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert refused.returncode == 2
        assert f"retune: process {first.pid} is working on this run already" in refused.stderr
        gate.touch()
        assert first.wait(PATIENCE_SECONDS) == 0, lab.log.read_text()
        assert second.wait(PATIENCE_SECONDS) == 0, other.log.read_text()
    by_seed = {run.describe["seed"]: run.run_id for run in RunLedger(lab.home).list()}
    assert outcome(lab.home, by_seed[0]) == undisturbed
    alone = Lab(lab.folder, lab.api, "alone", seed=1)
    alone.finish()
    assert outcome(lab.home, by_seed[1]) == outcome(alone.home)


@pytest.mark.long
def test_a_file_that_cannot_be_written(lab: Lab, undisturbed: Outcome) -> None:
    """A limit on the size of files stops the round where it is stored; without it the run goes on."""
    with lab.started(file_size=4096) as process:
        assert process.wait(PATIENCE_SECONDS) == 2, lab.log.read_text()
    assert lab.log.read_text().splitlines()[-1].startswith("retune: cannot write ")
    assert "File too large" in lab.log.read_text().splitlines()[-1]
    assert lab.stored() == []
    lab.finish()
    assert outcome(lab.home) == undisturbed


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="only root can make a disk that is full")
def test_a_disk_that_is_full(lab: Lab, undisturbed: Outcome) -> None:
    lab.home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(lab.home)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted: {mounted.stderr.decode()}")
    try:
        with lab.started(pause=0.05) as process:
            assert process.wait(PATIENCE_SECONDS) == 2, lab.log.read_text()
        assert "No space left on device" in lab.log.read_text().splitlines()[-1]
        before = lab.stored()
        assert before
        check = ParquetRecordStore(lab.home).check()
        assert check.rows == len(before)
        assert check.temporaries == ()
        subprocess.run(["mount", "-o", "remount,size=16m", lab.home], check=True)
        lab.finish()
        assert {record.record_id for record in before} <= {record.record_id for record in lab.stored()}
        assert outcome(lab.home) == undisturbed
    finally:
        subprocess.run(["umount", "-l", lab.home], check=True)
