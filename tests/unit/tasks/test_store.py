"""What a run finds in the store when it begins."""

from pathlib import Path

from retune.compiler.measure.record import UNTESTED_CANDIDATE
from retune.storage.parquet import ParquetRecordStore
from retune.storage.runs import RunLedger
from retune.tasks.store import recall
from tests.support.record_samples import timed


def test_a_resumed_run_does_not_count_its_confirmed_guesses_as_trials(tmp_path: Path) -> None:
    with RunLedger(tmp_path).open_or_resume("run", {}) as run:
        trial = timed("key", 1e-3, run_id=run.run_id)
        guess = timed("other", 1e-3, run_id=run.run_id, mutation=UNTESTED_CANDIDATE)
        ParquetRecordStore(tmp_path).append([trial, guess])
        known = recall.fn(run.run_id, tmp_path, ["key", "other"], trial.target, trial.device, trial.threads)
        assert [record.record_id for record in known.own] == [trial.record_id]
        assert known.programs == 0
