"""Which program serves a kernel when nothing is measured: what a run confirmed, or the fastest record."""

import math
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retune.compiler.core import config
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.measure.logs.log import to_record
from retune.compiler.measure.record import MeasureRecord
from retune.compiler.tune.extract import ExtractedNetwork, extract_network
from retune.storage.files import new_id
from retune.storage.parquet import ParquetRecordStore
from retune.tasks.find_programs import find_programs
from tests.support.trials import split_by_one

Confirm = Callable[..., None]


@pytest.fixture(scope="module")
def mlp() -> ExtractedNetwork:
    return extract_network("mlp", "llvm", 1)


@pytest.fixture(autouse=True)
def records(mlp: ExtractedNetwork, tmp_path: Path) -> tuple[MeasureRecord, MeasureRecord]:
    """Two records of the first task: a fast one, and one that takes twice as long."""
    made = replace(
        to_record(split_by_one(mlp.tasks[0]), config.device_name()), threads=1, target=str(mlp.target), timestamp=1e9
    )
    fast = replace(made, record_id="FAST", costs=(1e-3,))
    slow = replace(made, record_id="SLOW", costs=(2e-3,))
    ParquetRecordStore(tmp_path).append([fast, slow])
    return fast, slow


@pytest.fixture
def confirm(mlp: ExtractedNetwork, tmp_path: Path, records: tuple[MeasureRecord, ...]) -> Confirm:
    """Confirm that a record serves the first task."""

    def stored(record_id: str, seconds: float, **scope: Any) -> None:
        place = {"target": str(mlp.target), "device": config.device_name(), "threads": 1, **scope}
        steps, mutation = (records[0].steps, "confirmed") if record_id else ("[]", "confirmed, default")
        row = replace(records[0], parent_id=record_id, steps=steps, mutation=mutation, costs=(seconds,), **place)
        ParquetRecordStore(tmp_path).append([replace(row, record_id=new_id(), timestamp=time.time())])

    return stored


def served(mlp: ExtractedNetwork, home: Path) -> tuple[str, float]:
    programs = find_programs(mlp, home, None)
    key = mlp.tasks[0].workload_key
    assert programs.keys() == {key}
    return programs[key].record_id, programs[key].seconds


Records = Sequence[MeasureRecord]


def test_the_fastest_record_serves_where_no_run_confirmed_one(mlp: ExtractedNetwork, tmp_path: Path) -> None:
    assert served(mlp, tmp_path) == ("FAST", 1e-3)


def test_all_programs_of_a_task_are_known_the_fastest_first(mlp: ExtractedNetwork, tmp_path: Path) -> None:
    program = find_programs(mlp, tmp_path, None)[mlp.tasks[0].workload_key]
    assert [substitute.record_id for substitute in program.substitutes] == ["FAST", "SLOW"]


def test_what_was_faster_than_a_confirmed_program_takes_no_place(
    mlp: ExtractedNetwork, tmp_path: Path, confirm: Confirm, records: tuple[MeasureRecord, MeasureRecord]
) -> None:
    confirm("SLOW", 1.5e-3)
    later = replace(records[0], record_id="LATER", costs=(1.2e-3,), timestamp=time.time() + 60.0)
    hasty = replace(records[0], record_id="HASTY", costs=(3e-3,), censored=True)
    ParquetRecordStore(tmp_path).append([later, hasty])
    program = find_programs(mlp, tmp_path, None)[mlp.tasks[0].workload_key]
    assert [substitute.record_id for substitute in program.substitutes] == ["LATER", "SLOW"]


def test_what_a_run_confirmed_last_serves(mlp: ExtractedNetwork, tmp_path: Path, confirm: Confirm) -> None:
    confirm("FAST", 3e-3)
    confirm("SLOW", 2.5e-3)
    assert served(mlp, tmp_path) == ("SLOW", 2.5e-3)


def test_a_later_record_serves_if_it_is_faster_than_what_was_confirmed(
    mlp: ExtractedNetwork, tmp_path: Path, records: Records, confirm: Confirm
) -> None:
    confirm("SLOW", 2.5e-3)
    later = [replace(records[0], record_id=name, timestamp=time.time() + 60) for name in ("LATER", "LAST")]
    store = ParquetRecordStore(tmp_path)
    store.append([replace(later[0], costs=(2.6e-3,))])
    assert served(mlp, tmp_path) == ("SLOW", 2.5e-3)
    store.append([replace(later[1], costs=(2.4e-3,))])
    assert served(mlp, tmp_path) == ("LAST", 2.4e-3)


@pytest.mark.parametrize("scope", [{"threads": 2}, {"device": "another machine"}, {"target": "llvm -mcpu=haswell"}])
def test_runs_elsewhere_confirm_nothing_here(
    scope: dict[str, Any], mlp: ExtractedNetwork, tmp_path: Path, confirm: Confirm
) -> None:
    confirm("SLOW", 2.5e-3, **scope)
    assert served(mlp, tmp_path) == ("FAST", 1e-3)


def test_the_default_schedule_serves_where_it_was_confirmed(
    mlp: ExtractedNetwork, tmp_path: Path, confirm: Confirm
) -> None:
    confirm("", 2.5e-3)
    assert served(mlp, tmp_path) == ("", 2.5e-3)
    programs = find_programs(mlp, tmp_path, None)
    network = compile_graph(mlp.graph, mlp.target, programs, threads=1, cut=mlp.partition)
    (kernel,) = (one for one in network.coverage if one.task_key == mlp.tasks[0].workload_key)
    assert (kernel.record_id, str(kernel.origin)) == ("", "default")


def test_a_way_of_a_layer_that_a_run_did_not_confirm_is_never_the_fastest(
    mlp: ExtractedNetwork, tmp_path: Path, confirm: Confirm, records: Records
) -> None:
    """The second task, as if it were another way to compute the layer of the first, is faster by its record alone."""
    other = mlp.tasks[1].workload_key
    ParquetRecordStore(tmp_path).append([replace(records[0], record_id="OTHER", task_key=other, costs=(1e-4,))])
    confirm("SLOW", 2e-3)
    layered = copy(mlp)
    layered.layers = (0, 0, *mlp.layers[2:])
    programs = find_programs(layered, tmp_path, None)
    assert (programs[other].record_id, programs[other].seconds) == ("OTHER", math.inf)
    assert programs[mlp.tasks[0].workload_key].seconds == 2e-3
