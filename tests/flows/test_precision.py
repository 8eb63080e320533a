"""`--precision` of the command line and of Python: mistakes, resumption, and what runs and files say."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import retune
from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.artifact import Array
from retune.compiler.tune.precision.request import LayerChoice, PrecisionChoice, PrecisionRequest
from retune.flows.parameters import TuneJob
from retune.storage.runs import RunLedger
from retune.tasks import precision as task
from retune.tasks.report.facts import facts_of
from retune.tasks.report.page import page
from tests.support.flows.command_line import Refused, run
from tests.support.stored_runs import finished_run

RNG = np.random.default_rng(0)
CHOICE = PrecisionChoice(
    "auto",
    (LayerChoice("first_layer", "dense", "int8", 2e-3, 1e-3, 0.004), LayerChoice("last", "dense", "float32", 1e-3)),
    {"x": (-1.0, 2.0)},
    error=0.004,
    float32_seconds=3e-3,
    seconds=2e-3,
    curve=((0.001, 3e-3), (0.01, 2e-3), (0.1, 1.5e-3)),
)


def samples(count: int = 4) -> Array:
    return RNG.standard_normal((count, 784)).astype(np.float32)


@pytest.mark.parametrize("command", ["tune", "compile"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--precision", "int4"), ("precision must be one of", "'int4'")),
        (("--precision", "auto", "--tolerance", "0"), ("tolerance must be between", "not 0")),
        (("--precision", "auto", "--tolerance", "5"), ("tolerance must be between", "not 5")),
        (("--precision", "auto", "--metric", "loud"), ("metric must be one of", "'loud'")),
        (("--tolerance", "0.1"), ("the option tolerance needs a precision",)),
        (("--precision", "int8", "--calibrate", "shape.npz"), ("input: float32[1, 784] got the shape [2, 3]",)),
        (("--precision", "int8", "--calibrate", "nan.npz"), ("'input' has a NaN or an infinity",)),
        (("--precision", "int8", "--calibrate", "name.npz"), ("no input 'image'; its inputs are input",)),
        (("--precision", "int8", "--calibrate", "text.npz"), ("cannot read samples from",)),
        (("--precision", "int8", "--calibrate", "missing.npz"), ("cannot read samples from", "missing.npz")),
        (("--precision", "int8", "--calibrate", "empty"), ("has no .npz",)),
        (("--precision", "bfloat16", "--target", "cuda -arch=sm_90"), ("precision bfloat16 is for",)),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    command: str, options: tuple[str, ...], words: tuple[str, ...], folder: Path, refused: Refused
) -> None:
    np.savez(folder / "shape.npz", input=np.ones((2, 3), "float32"))
    np.savez(folder / "nan.npz", input=np.full((1, 784), np.nan, "float32"))
    np.savez(folder / "name.npz", image=samples())
    (folder / "text.npz").write_text("no archive")
    (folder / "empty").mkdir()
    before = sorted(folder.rglob("*"))
    said = refused(command, "mlp", "--quiet", *options)
    for word in words:
        assert word in said
    assert sorted(folder.rglob("*")) == before


@pytest.mark.usefixtures("folder")
def test_an_operator_has_no_precision(refused: Refused) -> None:
    said = refused("tune", 'operator:["retune.matmul", 64, 64, 64]', "--precision", "int8")
    assert "--precision is for networks" in said


def test_a_fleet_has_no_precision() -> None:
    with pytest.raises(OptionError, match="precision int8 is for the CPU"):
        TuneJob.of("mlp", precision="int8", fleet="prefect")


def test_other_samples_and_other_precisions_are_other_runs(folder: Path) -> None:
    np.savez(folder / "a.npz", input=samples())
    jobs = [
        TuneJob.of("mlp", **given)
        for given in (
            {},
            {"precision": "bfloat16"},
            {"precision": "auto"},
            {"precision": "auto", "tolerance": 0.005},
            {"precision": "auto", "metric": "mean"},
            {"precision": "auto", "calibrate": "a.npz"},
        )
    ]
    prints = [job.fingerprint(["key"]) for job in jobs]
    np.savez(folder / "a.npz", input=samples())
    prints.append(jobs[-1].fingerprint(["key"]))
    assert len({*prints}) == 7
    assert "precision" not in prints[0]  # a run that began before there were precisions is still found


def test_a_resumed_run_keeps_its_precisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = RunLedger(tmp_path)
    with ledger.open_or_resume("f", {}) as opened:
        ledger.set_once(opened.run_id, "precision", CHOICE.to_json())
        other = {**CHOICE.to_json(), "layers": []}
        assert PrecisionChoice.from_json(ledger.set_once(opened.run_id, "precision", other)) == CHOICE
    monkeypatch.setattr(task, "WorkerProcess", lambda: pytest.fail("precisions were chosen again"))
    machine = "llvm", 1, True
    kept = task.choose_precisions.fn("mlp", (), PrecisionRequest("auto"), machine, 0, tmp_path, opened.run_id)
    assert kept == CHOICE


def test_a_run_chooses_once_and_stores_what_it_chose(tmp_path: Path) -> None:
    ledger = RunLedger(tmp_path)
    with ledger.open_or_resume("f", {}) as opened:
        request = PrecisionRequest("bfloat16", calibrate=[samples(1)])
        choice = task.choose_precisions.fn("mlp", (), request, ("llvm", 1, True), 0, tmp_path, opened.run_id)
    assert {layer.precision for layer in choice.layers} == {"bfloat16"}
    assert PrecisionChoice.from_json(ledger.get(opened.run_id).precision or {}) == choice


def test_the_page_shows_layers_and_the_curve(tmp_path: Path) -> None:
    run_id = finished_run(tmp_path)
    RunLedger(tmp_path).set_once(run_id, "precision", CHOICE.to_json())
    text = page(facts_of(tmp_path, RunLedger(tmp_path).get(run_id)))
    section = text[text.index('id="precision"') :]
    assert "first_layer" in section
    assert '<td class="w">int8</td>' in section
    assert "Latency of the network against the tolerance" in section
    assert "1 in int8, 1 in float32; error of the outputs (largest) 0.40%" in section


def test_a_compiled_network_takes_and_returns_float32(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(folder / "samples.npz", input=samples())
    assert run(monkeypatch, "compile", "mlp", "--precision", "int8", "--calibrate", "samples.npz") == 0
    network, exact = retune.load("mlp.retune"), retune.compile("mlp")
    assert network.inputs == exact.inputs
    assert network.outputs == exact.outputs
    x = samples(1)
    error = np.abs(network(x) - exact(x)).max() / np.abs(exact(x)).max()
    assert 0.0 < error < 0.05


@pytest.mark.usefixtures("folder")
def test_compile_says_what_it_chose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert run(monkeypatch, "compile", "mlp", "--precision", "bfloat16", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert {layer["precision"] for layer in told["precision"]["layers"]} == {"bfloat16"}
    (warning,) = (record.getMessage() for record in caplog.records)
    assert "random inputs" in warning


@pytest.mark.usefixtures("folder")
def test_samples_from_python() -> None:
    for calibrate in ([samples(1)], samples(3), ({"input": samples(1)} for _ in range(2)), {"input": samples(2)}):
        network = retune.compile("mlp", precision="int8", calibrate=calibrate)
        assert network.precision is not None
        assert network.precision.is_mixed
    with pytest.raises(OptionError, match="needs a precision"):
        retune.compile("mlp", calibrate=[samples(1)])


@pytest.mark.usefixtures("folder")
def test_a_quantized_model_is_taken_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    network = retune.compile(_quantized(), precision="int8")
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.endswith("is quantized already: it is taken as it is")
    x = np.asarray([[1.0, -2.0]], np.float32)
    assert (network(x) == retune.compile(_quantized())(x)).all()


def _quantized() -> onnx.ModelProto:
    constants = [
        onnx.numpy_helper.from_array(np.asarray(value), name)
        for name, value in (("s", np.float32(0.1)), ("z", np.uint8(100)))
    ]
    nodes = [
        onnx.helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        onnx.helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    sides = [onnx.helper.make_tensor_value_info(name, 1, [1, 2]) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "q", sides[:1], sides[1:], constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.long
def test_a_tuned_network_is_checked_by_its_tolerance(folder: Path) -> None:
    calibrate = [samples(1) for _ in range(4)]
    settings = {"trials": 3, "options": {"threads": 1}, "progress": False}
    network = retune.tune("mlp", precision="int8", tolerance=0.1, calibrate=calibrate, **settings)  # type: ignore[arg-type]
    (info,) = RunLedger(folder / "state").list()
    assert network.precision == PrecisionChoice.from_json(info.precision or {})
    report = json.loads((folder / "state/runs" / info.run_id / "report.json").read_text())
    assert report["comparison"]["tolerance"] == 0.1
    assert report["is_right"]
    assert {layer["precision"] for layer in report["precision"]["layers"]} == {"int8"}
    # The same call again takes the network from the store.
    again = retune.tune("mlp", precision="int8", tolerance=0.1, calibrate=calibrate, **settings)  # type: ignore[arg-type]
    assert len(RunLedger(folder / "state").list()) == 1
    assert (again(calibrate[0]) == network(calibrate[0])).all()
