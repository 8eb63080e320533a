"""Contract tests of `RecordStore`, run on every store; a new store is one more fixture."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from retune.compiler.core.errors import SchemaError, StoreError
from retune.compiler.measure.record import SCHEMA_VERSION
from retune.storage.base import RecordStore
from retune.storage.files import new_id
from retune.storage.parquet import ParquetRecordStore
from tests.support.memory_store import MemoryRecordStore
from tests.support.record_samples import CPU, failed, timed


@pytest.fixture(params=["memory", "parquet", "parquet reopened", "parquet by url", "objects", "objects on s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RecordStore:
    """One store of each kind; those that are reopened forget their cache before every read."""
    match request.param:
        case "memory":
            return MemoryRecordStore()
        case "parquet":
            return ParquetRecordStore(tmp_path)
        case "parquet reopened":
            return ForgetfulStore(tmp_path)
        case "parquet by url":
            return ParquetRecordStore(f"file://{tmp_path}/a%20store")
        case "objects":
            return ForgetfulStore(f"memory://{new_id()}/store")
        case _:
            return ForgetfulStore(request.getfixturevalue("s3_place"))


class ForgetfulStore(ParquetRecordStore):
    """A Parquet store that reads everything again, as another process would."""

    def append(self, records: object) -> None:
        super().append(records)  # type: ignore[arg-type]
        self.__init__(self.blobs.url)  # type: ignore[misc]


class TestRecordStoreContract:
    """The promises, one by one."""

    def test_an_empty_store_answers_everything(self, store: RecordStore) -> None:
        assert store.records() == []
        assert store.best("w0") is None
        assert store.best_per_task() == {}
        assert store.tasks() == []

    def test_records_come_back_equal(self, store: RecordStore) -> None:
        records = [timed("w0", 1e-3, timestamp=1.75e9), failed("w0", timestamp=1.75e9 + 1e-6, predicted=None)]
        store.append(records)
        assert store.records() == records

    def test_confirmations_are_no_trials(self, store: RecordStore) -> None:
        trial = timed("w0", 1e-3)
        confirmed = timed("w0", 2e-3, parent_id=trial.record_id, mutation="confirmed, tile")
        store.append([confirmed, trial])
        assert store.records("w0") == [trial]
        assert store.records("w0", confirmations=True) == sorted([trial, confirmed], key=lambda one: one.record_id)
        assert [task["trials"] for task in store.tasks()] == [1]

    def test_the_order_is_that_of_time_round_and_id(self, store: RecordStore) -> None:
        first = timed("w1", 1.0, timestamp=1.0, round=1)
        second = timed("w0", 1.0, timestamp=2.0, round=0)
        third = timed("w0", 1.0, timestamp=2.0, round=1)
        fourth = timed("w0", 1.0, timestamp=2.0, round=1)
        store.append([fourth, second])
        store.append([third, first])
        assert store.records() == [first, second, *sorted([third, fourth], key=lambda r: r.record_id)]

    def test_every_argument_filters(self, store: RecordStore) -> None:
        wanted = timed("w0", 1.0)
        others = [
            timed("w1", 1.0),
            replace(timed("w0", 1.0), target="llvm -mcpu=other"),
            replace(timed("w0", 1.0), device="elsewhere"),
            replace(timed("w0", 1.0), run_id="another"),
            replace(timed("w0", 1.0), threads=1),
        ]
        store.append([wanted, *others])
        assert store.records("w0", CPU, "host", "run", 2) == [wanted]
        assert len(store.records("w0")) == 5
        assert len(store.records(run_id="run")) == 5

    def test_an_id_appended_twice_is_seen_once(self, store: RecordStore) -> None:
        record = timed("w0", 1.0)
        store.append([record, record])
        store.append([record])
        assert store.records() == [record]
        assert store.tasks()[0]["trials"] == 1

    def test_appending_nothing_is_fine(self, store: RecordStore) -> None:
        store.append([])
        assert store.records() == []

    def test_best_ignores_failed_runs(self, store: RecordStore) -> None:
        store.append([failed("w0"), timed("w0", 2e-3), timed("w0", 1e-3)])
        best = store.best("w0", target=CPU)
        assert best is not None
        assert best.seconds == 1e-3

    def test_best_of_failures_is_none(self, store: RecordStore) -> None:
        store.append([failed("w0")])
        assert store.best("w0") is None
        assert store.best_per_task() == {}

    def test_best_keeps_places_apart(self, store: RecordStore) -> None:
        slow = timed("w0", 2e-3)
        elsewhere = replace(timed("w0", 1e-3), device="elsewhere")
        single = replace(timed("w0", 5e-4), threads=1)
        store.append([slow])
        store.append([elsewhere])
        store.append([single, failed("w0")])
        assert store.best("w0", device="host", threads=2) == slow
        assert store.best("w0", device="elsewhere") == elsewhere
        assert store.best("w0") == single
        assert store.best("w0", target="cuda") is None

    def test_the_earliest_of_equals_is_best(self, store: RecordStore) -> None:
        late, early = timed("w0", 1e-3, timestamp=9.0), timed("w0", 1e-3, timestamp=8.0)
        store.append([late])
        store.append([early])
        assert store.best("w0") == early

    def test_best_per_task_has_one_record_a_task(self, store: RecordStore) -> None:
        a, b = timed("w0", 1e-3), timed("w1", 2e-3)
        store.append([a, timed("w0", 2e-3), b, failed("w2")])
        store.append([timed("w1", 3e-3), timed("w0", 4e-3)])
        assert store.best_per_task(target=CPU) == {"w0": a, "w1": b}
        assert store.best_per_task(target="cuda") == {}

    def test_the_fastest_repeat_counts(self, store: RecordStore) -> None:
        steady = replace(timed("w0", 1.0), costs=(3.0, 2.0, 2.0))
        disturbed = replace(timed("w0", 1.0), costs=(1.5, 40.0, 40.0))
        store.append([steady])
        store.append([disturbed])
        assert store.best("w0") == disturbed

    def test_tasks_are_summed_up(self, store: RecordStore) -> None:
        store.append([timed("w1", 2e-3), failed("w1", timestamp=1.8e9), failed("w0")])
        names = ("task_key", "trials", "failures", "best_seconds")
        figures = [tuple(task[name] for name in names) for task in store.tasks()]
        assert figures == [("w0", 1, 1, None), ("w1", 2, 1, 2e-3)]
        assert store.tasks()[1]["last_timestamp"] == 1.8e9

    @pytest.mark.parametrize("cost", [float("inf"), float("nan"), 0.0, -1.0, 1e400])
    def test_no_magic_cost_is_stored(self, store: RecordStore, cost: float) -> None:
        with pytest.raises(StoreError, match="cost"):
            store.append([timed("w0", 1.0), timed("w0", cost)])
        assert store.records() == []

    def test_an_integer_too_large_is_refused(self, store: RecordStore) -> None:
        with pytest.raises(StoreError, match="cannot store"):
            store.append([replace(timed("w0", 1.0), seed=2**70)])

    def test_a_record_of_another_layout_is_refused(self, store: RecordStore) -> None:
        with pytest.raises(SchemaError, match="writes"):
            store.append([replace(timed("w0", 1.0), schema_version=SCHEMA_VERSION + 1)])

    def test_undecodable_error_text_is_spelled_out(self, store: RecordStore) -> None:
        store.append([failed("w0", mutation="caf\udce9")])
        assert store.records()[0].mutation == "caf\\udce9"

    def test_a_store_can_be_pickled(self, store: RecordStore) -> None:
        store.append([timed("w0", 1e-3)])
        assert pickle.loads(pickle.dumps(store)).records() == store.records()
