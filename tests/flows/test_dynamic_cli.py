"""Networks of dynamic shapes on the command line: compiled once for ranges, timed, refused in one sentence."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import retune
from retune.compiler.core import config
from retune.compiler.core.target import Target
from retune.compiler.measure.record import Measurement
from retune.compiler.model.base import RandomModel
from retune.compiler.search.block_search import BlockSearch
from retune.compiler.tune.by_shape import read_sample
from retune.compiler.tune.tuning import RunHeader
from retune.compiler.vm.compiler import VMCompiler
from retune.flows.cli.commands.arguments import home_of
from retune.flows.dynamic_network import compile_dynamic
from retune.storage.parquet import ParquetRecordStore
from tests.support.dynamic_models import floats, model, node, tensor
from tests.support.flows.command_line import Refused, run

WEIGHT = floats(64, 16)


@pytest.fixture
def dense(folder: Path) -> str:
    """The path of a network with two symbols: x @ w + x2 @ w."""
    nodes = [node("Add", ["x", "x2"], ["sum"]), node("MatMul", ["sum", "w"], ["y"])]
    inputs = [tensor("x", ["batch", "tokens", 64]), tensor("x2", ["batch", "tokens", 64])]
    onnx.save(model(nodes, inputs, [tensor("y", ["batch", "tokens", 16])], {"w": WEIGHT}), folder / "dense.onnx")
    return "dense.onnx"


def _computes(path: Path, *shape: int) -> None:
    x = floats(*shape)
    np.testing.assert_allclose(retune.load(path)(x, x), 2 * x @ WEIGHT, rtol=1e-4, atol=1e-4)


def test_a_network_with_ranges_is_compiled_once_and_timed_at_three_sizes(
    dense: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "compile", dense, "--shape", "x=1..2,1..9,64", "--threads", "1", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ranges"] == {"batch": "1..2", "tokens": "1..9"}
    assert facts["per_shape"] == {}
    assert facts["inputs"]["x2"] == {"dtype": "float32", "shape": ["batch", "tokens", 64]}
    _computes(folder / "dense.retune", 2, 9, 64)
    assert run(monkeypatch, "run", "dense.retune", "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["inputs"]["x2"]["shape"] for row in rows] == [[1, 1, 64], [1, 3, 64], [2, 9, 64]]
    assert all(len(row["seconds"]) == 10 and min(row["seconds"]) > 0 for row in rows)


def test_without_a_shape_the_symbols_of_the_file_stay_free(
    dense: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    assert run(monkeypatch, "compile", dense, "--threads", "1") == 0
    assert "input x: float32[batch, tokens, 64]" in capsys.readouterr().out
    for shape in ((0, 3, 64), (5, 1, 64)):
        _computes(folder / "dense.retune", *shape)
    assert "dimension 0 of the input x: float32[batch, tokens, 64] has any size" in refused("run", "dense.retune")
    assert run(monkeypatch, "export", "dense.retune", "-o", "out.so", "--runtime", "c") == 0
    assert "size_batch, int64_t size_tokens" in (folder / "out.h").read_text()
    capsys.readouterr()
    assert run(monkeypatch, "run", "dense.retune", "--shape", "x=1,2,64", "--json") == 0
    assert json.loads(capsys.readouterr().out)["inputs"]["x"]["shape"] == [1, 2, 64]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("compile dense.onnx --shape x=1,2..1,64", "dimension 1 of x: the range 2..1 is empty; did you mean 1..2?"),
        ("compile dense.onnx --shape x=1,-2..1,64", "dimension 1 of x: the range -2..1 is negative"),
        ("compile dense.onnx --shape x=1,1..2,1..64", "dimension 2 of x is 64 in the model, and no range"),
        ("compile dense.onnx --shape x=1,1..2,64 -o out.so", "is written to .retune"),
        ("compile dense.onnx --shape x=1,1..2,64 --precision int8", "precision int8 is for fixed shapes"),
        ("export dense.onnx --shape x=1,2..1,64 -o out.onnx", "the range 2..1 is empty"),
    ],
)
def test_ranges_that_cannot_be_are_refused_in_one_sentence(
    dense: str, refused: Refused, arguments: str, error: str
) -> None:
    assert dense
    assert error in refused(*arguments.split())


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        ("x=2,9,64", "tokens is 9 in dimension 1 of x; the network takes 1 to 8"),
        ("x=1,8", "the shape given for x does not fit the input x: float32[2, tokens, 64]"),
        ("x=3,8,64", "the shape given for x does not fit the input x"),
        ("z=1,8,64", "a shape is given for z, but the inputs are x, x2"),
    ],
)
def test_sizes_that_the_file_does_not_take_are_refused(
    dense: str, monkeypatch: pytest.MonkeyPatch, refused: Refused, shape: str, error: str
) -> None:
    assert run(monkeypatch, "compile", dense, "--shape", "x=2,1..8,64", "--threads", "1", "-q") == 0
    assert error in refused("run", "dense.retune", "--shape", shape)


ARGUMENTS = "--shape", "x=0..2,1..40,64", "--threads", "1"


def _compiler(dense: str) -> VMCompiler:
    return compile_dynamic(dense, ARGUMENTS[1:2], str(Target.host()), 1, None, home_of(None))


def test_a_network_with_ranges_is_compiled_with_its_records(
    dense: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = next(task for task, _, _ in _compiler(dense).symbolic_tasks if "dense" in task.name)
    (program,) = BlockSearch(task, RandomModel()).ask(1, 0)
    store = ParquetRecordStore(home_of(None))
    header = RunHeader("run", dense, str(Target.host()), config.device_name(), 1, 0, "{}")
    store.append([header.record(task, program, Measurement((1e-3,)), "first")])
    assert run(monkeypatch, "compile", dense, *ARGUMENTS, "--json") == 0
    assert json.loads(capsys.readouterr().out)["shares"]["record"] > 0.5
    for shape in ((0, 3, 64), (1, 1, 64), (2, 37, 64)):
        _computes(folder / "dense.retune", *shape)
    # One that cannot be built makes room for the default schedule, with a note.
    store.append([header.record(task, replace(program, steps='[["BL",9,0,8]]'), Measurement((1e-4,)), "second")])
    (row,) = (row for row in _compiler(dense).coverage.kernels if row.task_key == task.workload_key)
    assert row.note == "record second cannot be built: there is no axis 0 of stage 9"


@pytest.mark.parametrize(
    ("shapes", "error"),
    [
        ('{"z": [1, 2, 64]}', "entry 0: the network has no input z; its inputs are x, x2"),
        ('{"x": [2, 41, 64]}', "entry 0: tokens is 41 in dimension 1 of x; the network takes 1 to 40"),
        ('{"x": [2, 64]}', "entry 0: the input x: float32[batch, tokens, 64] has rank 3"),
        ('{"x": [2, 4, 65]}', "entry 0: the input x: float32[batch, tokens, 64] is given an array of [2, 4, 65]"),
        ('{"x": [1, 4, 64], "x2": [1, 5, 64]}', "tokens is 4 in dimension 1 of x and 5 in dimension 1 of x2"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    dense: str, folder: Path, refused: Refused, shapes: str, error: str
) -> None:
    (folder / "lengths.json").write_text(f'[{{"shapes": {shapes}}}]')
    assert error in refused("tune", dense, *ARGUMENTS, "--shapes", "lengths.json", "--trials", "1")


def test_a_file_has_the_sample_of_a_network(dense: str, folder: Path) -> None:
    lengths = [(1, 4, 3), (2, 40, 1), (1, 4, 4)]
    entries = [{"shapes": {"x": [batch, tokens, 64]}, "weight": weight} for batch, tokens, weight in lengths]
    (folder / "lengths.json").write_text(json.dumps(entries))
    program = _compiler(dense).get_exec().program
    sample = read_sample(str(folder / "lengths.json"), program)
    assert [(shape.sizes, shape.weight) for shape in sample] == [
        ({"batch": 1, "tokens": 4}, 7 / 8),
        ({"batch": 2, "tokens": 40}, 1 / 8),
    ]
    many = [{"shapes": {"x": [1, tokens, 64]}, "weight": tokens} for tokens in range(1, 41)]
    (folder / "lengths.json").write_text(json.dumps(many))
    sample = read_sample(str(folder / "lengths.json"), program)
    assert 12 <= len(sample) <= 16
    assert math.isclose(sum(shape.weight for shape in sample), 1.0)
    mean = sum(shape.weight * shape.sizes["tokens"] for shape in sample)
    assert abs(mean - 27) < 1.5  # that of all


def test_ranges_that_cannot_be_tuned_are_refused(dense: str, refused: Refused) -> None:
    assert "give no fleet and no throughput" in refused("tune", dense, *ARGUMENTS, "--objective", "throughput")
    error = refused("tune", dense, "--shape", "x=?,1..40,64", "--threads", "1", "--trials", "1")
    assert "batch has no range to tune for: give each symbol a range, or --shapes a file" in error
    assert "precision int8 is for fixed shapes" in refused("tune", dense, *ARGUMENTS, "--precision", "int8")
