"""`retune export`: files for ONNX Runtime, with what is known of the network, and clear errors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from retune.compiler.core import config
from retune.compiler.frontend.network import network_bytes
from retune.compiler.measure.logs.log import to_record
from retune.compiler.tune.extract import extract_network
from retune.storage.parquet import ParquetRecordStore
from tests.support.flows.command_line import Refused, run
from tests.support.trials import split_by_one


def _scores(model: Any, library: str = "") -> NDArray[Any]:
    options = onnxruntime.SessionOptions()
    if library:
        options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(model, options)
    (entry,) = session.get_inputs()
    image = np.random.default_rng(0).random(entry.shape).astype("float32")
    return np.asarray(session.run(None, {entry.name: image})[0])


def test_a_network_is_exported_with_its_best_records(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task = extract_network("mlp", "llvm", 1).tasks[0]
    record = replace(to_record(split_by_one(task), config.device_name()), threads=1, target=str(task.target))
    ParquetRecordStore(folder / "state").append([record])
    assert run(monkeypatch, "export", "mlp", "--threads", "1", "-o", "out.onnx", "--json") == 0
    part, files = map(json.loads, capsys.readouterr().out.splitlines())
    assert part["shares"]["record"] > 0
    assert files == {"model": str(folder / "out.onnx"), "library": str(folder / "out.so"), "threads": 1}
    found, wanted = _scores(files["model"], files["library"]), _scores(network_bytes("mlp"))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_compiled_network_is_exported_as_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    assert run(monkeypatch, "compile", "mlp", "--threads", "1", "-o", "net.retune") == 0
    assert run(monkeypatch, "export", "net.retune", "-o", "out.onnx") == 0
    capsys.readouterr()
    found, wanted = _scores(str(folder / "out.onnx"), str(folder / "out.so")), _scores(network_bytes("mlp"))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert "net.retune is compiled" in refused("export", "net.retune", "-o", "out.onnx", "--threads", "2")


def test_a_damaged_network_is_no_model(folder: Path, refused: Refused) -> None:
    (folder / "net.retune").write_bytes(b"no network")
    assert "net.retune is no compiled network, or is damaged" in refused("export", "net.retune", "-o", "out.onnx")


def test_the_model_itself_is_not_overwritten(folder: Path, refused: Refused) -> None:
    model = folder / "own.onnx"
    model.write_bytes(network_bytes("mlp"))
    assert "own.onnx is the model itself" in refused("export", "own.onnx", "-o", "./own.onnx")
    assert model.read_bytes() == network_bytes("mlp")
    assert not (folder / "own.so").exists()


def test_a_compiled_network_runs_on_the_threads_it_is_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RETUNE_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert run(monkeypatch, "compile", "mlp", "--threads", "1", "-o", str(folder / "net.retune"), "--quiet") == 0
    capsys.readouterr()
    assert run(monkeypatch, "run", "net.retune", "--json") == 0
    assert json.loads(capsys.readouterr().out)["threads"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "out.onnx", "--runtime", "tflite"), "no export for the runtime 'tflite'"),
        (("-o", "out.so"), "is exported to .onnx"),
        (("-o", "out.so", "--runtime", "onnxruntime-ep"), "no export for the runtime 'onnxruntime-ep'"),
        (("-o", "missing/out.onnx"), "cannot write missing/out.onnx"),
        (("-o", "out.onnx", "--target", "cuda -arch=sm_90"), "is code for cuda"),
    ],
)
def test_what_cannot_be_exported_leaves_no_file(
    arguments: tuple[str, ...], message: str, folder: Path, refused: Refused
) -> None:
    before = sorted(folder.rglob("*.onnx*"))
    assert message in refused("export", "mlp", *arguments)
    assert sorted(folder.rglob("*.onnx*")) == before
    assert not (folder / "out.so").exists()
