"""`retune compile`: a network with what is known of it, and without what is not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from compiler import config
from compiler.driver.extract import extract_network
from compiler.executor.graph_executor import GraphExecutor
from compiler.executor.network import CompiledNetwork
from compiler.measure.log import append_log, to_record
from compiler.measure.record import MeasureRecord
from compiler.schedule.task import SearchTask
from storage.parquet import ParquetRecordStore
from tests.flows.command_line import refused, run
from tests.trials import split_by_one


def _record(task: SearchTask, device: str) -> MeasureRecord:
    return replace(to_record(split_by_one(task), device), threads=1, target=str(task.target))


def test_records_of_this_machine_then_logs_then_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, *others = extract_network("mlp", "llvm", 1).tasks
    elsewhere = [_record(task, "another machine") for task in others]
    ParquetRecordStore(folder / "state").append([_record(first, config.device_name()), *elsewhere])
    append_log(folder / "logs" / "tuned.json", [split_by_one(second)])
    assert run(monkeypatch, "compile", "mlp", "--threads", "1", "--log", "logs", "-o", "out.retune", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    network = CompiledNetwork.load(folder / "out.retune")
    origins = {kernel.workload_key: kernel.origin for kernel in network.coverage}
    assert origins[first.workload_key] == "record"
    assert origins[second.workload_key] == "context"
    assert [each["task_key"] for each in said["fallbacks"]] == [task.workload_key for task in others]
    assert said["tunable"] == 2 + len(others)
    GraphExecutor(network).run()


def test_kernels_without_a_record_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "compile", "mlp", "--threads", "1") == 0
    text = capsys.readouterr().out
    tasks = extract_network("mlp", "llvm", 1).tasks
    assert f"{len(tasks)} of {len(tasks)} kernels worth tuning have no program that was tuned" in text
    assert all(task.name in text for task in tasks)
    assert (folder / "mlp.retune").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing.onnx",), ("missing.onnx",)),
        (("mlp", "-o", "mlp.exe"), ("mlp.exe", ".retune")),
        (("mlp", "--log", "nowhere.json"), ("nowhere.json",)),
        (("mlp", "--threads", "0"), ("threads",)),
        (("mlp", "--log", "empty"), ("empty", "no log")),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: tuple[str, ...],
    words: tuple[str, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "empty").mkdir()
    said = refused(monkeypatch, capsys, "compile", *arguments)
    assert all(word in said for word in words)
