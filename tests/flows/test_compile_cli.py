"""`retune compile`: a network with what is known of it, and without what is not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from retune.compiler.core import config
from retune.compiler.measure.logs.log import append_log, to_record
from retune.compiler.measure.record import FITTED_CANDIDATE, UNTESTED_CANDIDATE, MeasureRecord
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.kernel_row import ProgramOrigin
from retune.compiler.schedule.default.gpu import default_gpu_steps
from retune.compiler.schedule.steps import dump_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tune.extract import extract_network
from retune.flows.cli.commands import compile as compile_module
from retune.storage.parquet import ParquetRecordStore
from retune.tasks.find_programs import threads_of_records
from tests.support.fake_cuda import DEVICE
from tests.support.flows.command_line import Refused, run
from tests.support.trials import split_by_one


def _record(task: SearchTask, device: str) -> MeasureRecord:
    return replace(to_record(split_by_one(task), device), threads=1, target=str(task.target))


def test_records_of_this_machine_then_logs_then_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, *others = extract_network("mlp", "llvm", 1).tasks
    elsewhere = [_record(task, "another machine") for task in others]
    ParquetRecordStore(folder / "state").append([_record(first, config.device_name()), *elsewhere])
    append_log(folder / "logs" / "tuned.json", [split_by_one(second)])
    assert (
        run(
            monkeypatch,
            "compile",
            "mlp",
            "--target",
            "llvm -num-cores=1",
            "--log",
            "logs",
            "-o",
            "out.retune",
            "--json",
        )
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    network = CompiledNetwork.load(folder / "out.retune")
    origins = {kernel.task_key: kernel.origin for kernel in network.coverage}
    assert origins[first.workload_key] == "record"
    assert origins[second.workload_key] == "context"
    assert [each["task_key"] for each in said["fallbacks"]] == [task.workload_key for task in others]
    assert said["tunable"] == 2 + len(others)
    GraphExecutor(network).run()


def test_records_of_a_gpu_are_those_of_the_one_that_is_here_or_of_any(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of a GPU are kept under its name, not under that of the CPU beside it."""
    here = f"cuda -arch={DEVICE.arch}"
    made = []
    for target in (here, "cuda -arch=sm_90"):  # which this one runs too
        first, second, *_ = extract_network("mlp", target, 1).tasks
        made += [(first, DEVICE.identity), (second, "another GPU")]
    records = [
        replace(_record(task, device), steps=dump_steps(default_gpu_steps(task.dag)), threads=7)
        for task, device in made
    ]
    ParquetRecordStore(folder / "state").append(records)
    for gpu, target, count in ((DEVICE, "cuda", 1), (DEVICE, "cuda -arch=sm_90", 1), (None, here, 2)):
        monkeypatch.setattr(compile_module, "gpu_here", lambda _, gpu=gpu: gpu)
        arguments = ("--threads", "1", "--target", target, "-o", "out.retune", "--quiet")
        assert run(monkeypatch, "compile", "mlp", *arguments) == 0
        coverage = CompiledNetwork.load(folder / "out.retune").coverage
        assert [kernel.origin for kernel in coverage].count(ProgramOrigin.RECORD) == count


def test_untested_candidate_of_an_earlier_run_is_used_and_labeled(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, *others = extract_network("mlp", "llvm", 1).tasks
    made = [(first, UNTESTED_CANDIDATE), (second, FITTED_CANDIDATE)]
    records = [replace(_record(task, config.device_name()), mutation=mutation) for task, mutation in made]
    ParquetRecordStore(folder / "state").append(records)
    assert run(monkeypatch, "compile", "mlp", "--threads", "1", "-o", "out.retune", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [each["task_key"] for each in said["fallbacks"]] == [task.workload_key for task in others]
    network = CompiledNetwork.load(folder / "out.retune")
    kernels = {kernel.task_key: kernel for kernel in network.coverage}
    assert [kernels[task.workload_key].origin for task, _ in made] == ["guess", "transfer"]
    assert [kernels[task.workload_key].record_id for task, _ in made] == [one.record_id for one in records]


def test_records_for_another_number_of_threads_are_pointed_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_ = extract_network("mlp", "llvm", 2).tasks
    ParquetRecordStore(folder / "state").append([_record(first, config.device_name())])
    monkeypatch.setattr(config, "usable_cores", lambda: 2)
    assert run(monkeypatch, "compile", "mlp", "--threads", "2", "-o", "out.retune") == 0
    said = capsys.readouterr().out
    assert "records of these kernels are for 1 thread: `--threads 1` uses them" in said
    assert run(monkeypatch, "compile", "mlp", "--threads", "1", "-o", "out.retune") == 0
    assert "uses them" not in capsys.readouterr().out


def test_kernels_without_a_record_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "compile", "mlp", "--threads", "1") == 0
    text = capsys.readouterr().out
    tasks = extract_network("mlp", "llvm", 1).tasks
    assert f"{len(tasks)} of {len(tasks)} kernels worth tuning use the default schedule" in text
    assert all(task.name in text for task in tasks)
    assert (folder / "mlp.retune").is_file()


def test_settings_say_what_the_flags_do_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETUNE_THREADS", "1")
    (folder / "retune.toml").write_text('target = "llvm -mcpu=znver3"\nwinograd = false\n', encoding="utf-8")
    assert run(monkeypatch, "compile", "mlp", "--quiet") == 0
    facts = CompiledNetwork.load(folder / "mlp.retune").metadata
    assert (facts["threads"], facts["target"]) == (1, "llvm -mcpu=znver3")
    assert run(monkeypatch, "compile", "mlp", "--quiet", "--threads", "2", "--target", "llvm -mcpu=znver4") == 0
    facts = CompiledNetwork.load(folder / "mlp.retune").metadata
    assert (facts["threads"], facts["target"]) == (2, "llvm -mcpu=znver4")


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
    arguments: tuple[str, ...], words: tuple[str, ...], folder: Path, refused: Refused
) -> None:
    (folder / "empty").mkdir()
    said = refused("compile", *arguments)
    assert all(word in said for word in words)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere/a.so", ("nowhere/a.so", "No such file or directory", "a folder that exists")),
        ("out.onnx", ("out.onnx", ".so or .retune")),
        (f"{'n' * 250}.retune", ("File name too long",)),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_compiling(
    path: str, words: tuple[str, ...], folder: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_module, "ImportedNetwork", lambda *_: pytest.fail("the network was read"))
    said = refused("compile", "mlp", "-o", path)
    assert all(word in said for word in words)
    assert list(folder.iterdir()) == []


def test_records_for_the_number_of_threads_itself_are_not_pointed_out(folder: Path) -> None:
    """The default schedule may be faster than these."""
    extracted = extract_network("mlp", "llvm", 1)
    task = extracted.tasks[0]
    ParquetRecordStore(folder / "state").append([_record(task, config.device_name())])
    assert threads_of_records(extracted, folder / "state", None, {task.workload_key}) == []
    extracted = extract_network("mlp", "llvm", 2)
    assert threads_of_records(extracted, folder / "state", None, {task.workload_key}) == [1]
