"""Tests of the run ledger: each run is resumed exactly when it should be, and has one owner."""

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from retune.compiler.core.errors import CorruptRecordError, StoreError
from retune.storage.runs import RunLedger
from tests.support.record_samples import another_owner


def test_a_fresh_fingerprint_starts_a_run(tmp_path: Path) -> None:
    ledger = RunLedger(tmp_path)
    with ledger.open_or_resume("f", {"network": "mlp"}) as run:
        assert not run.info.resumed
        assert ledger.get(run.run_id).describe == {"network": "mlp"}
    assert [info.run_id for info in ledger.list()] == [run.run_id]


def test_the_newest_unfinished_run_of_the_fingerprint_is_resumed(tmp_path: Path) -> None:
    ledger = RunLedger(tmp_path)
    with ledger.open_or_resume("f", {}) as first:
        pass
    with ledger.open_or_resume("other", {}):
        pass
    with ledger.open_or_resume("f", {"ignored": True}) as second:
        assert second.run_id == first.run_id
        assert second.info.resumed
        assert len(second.info.resumed) == 1
    assert ledger.get(first.run_id).describe == {}


def test_a_complete_run_is_not_resumed(tmp_path: Path) -> None:
    ledger = RunLedger(tmp_path)
    with ledger.open_or_resume("f", {}) as first:
        done = ledger.complete(first.run_id, {"best": 1e-3})
    assert done.is_complete
    assert ledger.get(first.run_id).summary == {"best": 1e-3}
    with ledger.open_or_resume("f", {}) as second:
        assert second.run_id != first.run_id
    assert [info.is_complete for info in ledger.list()] == [True, False]


def test_a_run_has_one_owner_even_in_one_process(tmp_path: Path) -> None:
    ledger = RunLedger(tmp_path)
    with ledger.open_or_resume("f", {}), pytest.raises(StoreError, match=f"process {os.getpid()} is working"):
        ledger.open_or_resume("f", {})
    with ledger.open_or_resume("f", {}) as again:
        assert again.info.resumed


def test_kill_9_frees_the_run(tmp_path: Path) -> None:
    ledger = RunLedger(tmp_path)
    with another_owner(tmp_path) as (run_id, process), pytest.raises(StoreError, match=f"process {process} is working"):
        ledger.open_or_resume("f", {})
    with ledger.open_or_resume("f", {}) as run:
        assert run.run_id == run_id
        assert run.info.resumed


def test_an_unknown_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run 01NOPE"):
        RunLedger(tmp_path).complete("01NOPE", {})


def test_a_description_must_be_json(tmp_path: Path) -> None:
    ledger = RunLedger(tmp_path)
    with pytest.raises(StoreError, match="JSON"):
        ledger.open_or_resume("f", {"target": object()})
    with ledger.open_or_resume("f", {}) as run:
        assert not run.info.resumed


def test_an_unreadable_entry_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = RunLedger(tmp_path)
    with ledger.open_or_resume("f", {}) as run:
        pass
    path = tmp_path / "runs" / f"{run.run_id}.json"
    json.loads(path.read_text())
    path.write_text("{")
    with caplog.at_level(logging.WARNING):
        assert ledger.list() == ()
    assert path.name in caplog.text
    assert (tmp_path / "quarantine" / "runs" / path.name).exists()


@pytest.mark.parametrize("said", ["../../elsewhere", "01ARZ3NDEKTSV4RRFFQ69G5FAV", 5])
def test_a_file_that_names_another_run_is_left_out(said: object, tmp_path: Path) -> None:
    """Ids become part of paths, so they are taken from nobody."""
    ledger = RunLedger(tmp_path)
    with ledger.open_or_resume("f", {}) as run:
        pass
    path = tmp_path / "runs" / f"{run.run_id}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "run_id": said}))
    with pytest.raises(CorruptRecordError, match=r"cannot be read|says that it is the run"):
        ledger.get(run.run_id)
    assert ledger.list() == ()
    assert path.exists()


def test_an_entry_of_a_newer_version_stays_where_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = RunLedger(tmp_path)
    with ledger.open_or_resume("f", {}) as run:
        pass
    path = tmp_path / "runs" / f"{run.run_id}.json"
    path.write_text(text := json.dumps({**json.loads(path.read_text()), "started": "2030-01-01"}))
    assert ledger.list() == ()
    assert path.read_text() == text
    assert "started: Input should be a valid number" in caplog.text


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE])
def test_a_linked_entry_stays_when_it_cannot_be_opened_now(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = RunLedger(tmp_path)
    with ledger.open_or_resume("f", {}) as run:
        pass
    path = tmp_path / "runs" / f"{run.run_id}.json"
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    real = os.open

    def refuse(name: Any, *rest: Any, **more: Any) -> int:
        if str(name) == str(path):
            raise OSError(code, os.strerror(code), name)
        return real(name, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(StoreError, match=os.strerror(code)):
            ledger.list()
    assert [info.run_id for info in ledger.list()] == [run.run_id]


@pytest.mark.parametrize("target", ["nowhere", "itself"])
def test_a_link_to_nothing_is_set_aside(target: str, tmp_path: Path) -> None:
    path = tmp_path / "runs" / "01ARZ3NDEKTSV4RRFFQ69G5FAV.json"
    path.parent.mkdir()
    path.symlink_to(path if target == "itself" else tmp_path / "nowhere")
    assert RunLedger(tmp_path).list() == ()
    assert (tmp_path / "quarantine" / "runs" / path.name).is_symlink()
