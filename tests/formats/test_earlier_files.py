"""Files that an earlier version of Retune wrote (`version1`) are read, and what is in them runs."""

import json
from pathlib import Path

import numpy as np
import pytest

from retune.compiler import vm
from retune.compiler.cost_model import training_data, xgb
from retune.compiler.cost_model.xgb import XGBModel
from retune.compiler.dtype import BFLOAT16
from retune.compiler.errors import ArtifactError
from retune.compiler.executor.params import load_param_dict_from_file
from retune.compiler.features import FEATURE_NAMES
from retune.compiler.graph_executor import cpu, load_module
from retune.compiler.runtime.buffers import aligned_zeros
from retune.compiler.runtime.cpu_features import check_cpu
from retune.compiler.runtime.module import Module

FILES = Path(__file__).parent / "version1"
X = np.arange(10, dtype=np.float32).reshape(2, 5) / 10
Y = np.array([[1.0994878, 1.0209886, 1.3059137], [2.387657, 1.5816278, 3.1275022]], np.float32)


def _require_cpu() -> None:
    """The code is for x86-64 with AVX2."""
    try:
        check_cpu("the file", {"triple": "x86_64-unknown-linux-gnu", "cpu": "x86-64-v3", "needs": ["avx2", "fma"]})
    except ArtifactError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", ["network.retune", "network.so"])
def test_a_network_of_an_earlier_version_runs(name: str) -> None:
    _require_cpu()
    executor = load_module(FILES / name)["default"](cpu())
    executor.run(x=X)
    np.testing.assert_allclose(executor.get_output(0), Y, rtol=1e-6)


@pytest.mark.parametrize("name", ["module.tar", "module.so"])
def test_a_module_of_an_earlier_version_runs(name: str) -> None:
    _require_cpu()
    given, result = aligned_zeros((6, 4), "float32"), aligned_zeros((6, 4), "float32")
    Module.load(FILES / name)["one"](given, result)
    np.testing.assert_array_equal(result, given + 1)


@pytest.mark.parametrize("name", ["module.tar", "module.so"])
def test_a_damaged_module_of_an_earlier_version_is_refused(name: str, tmp_path: Path) -> None:
    data = (FILES / name).read_bytes()
    code = data.index(b"\x7fELF") + 64
    file = tmp_path / name
    for damaged in (data[:code] + b"?" + data[code + 1 :], data[: len(data) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(ArtifactError, match="damaged"):
            Module.load(file)


def test_an_executable_of_an_earlier_version_runs_and_is_saved_again(tmp_path: Path) -> None:
    _require_cpu()
    old = vm.Executable.load(FILES / "static.rvm")
    for executable in (old, vm.Executable.load(old.export_library(tmp_path / "static.rvm"))):
        np.testing.assert_allclose(vm.VirtualMachine(executable, cpu()).invoke("main", X), Y, rtol=1e-6)


def test_regions_and_kernels_of_an_earlier_executable_are_read() -> None:
    executable = vm.Executable.load(FILES / "control.rvm")
    assert executable.globals == ["main"]
    assert len(executable.lib.kernels) == 6


def test_parameters_of_an_earlier_version_are_read() -> None:
    found = load_param_dict_from_file(FILES / "arrays.params")
    assert list(found) == ["w", "b", "s"]
    assert found["w"].tolist() == np.arange(12).reshape(3, 4).tolist()
    assert found["b"].dtype == np.dtype(BFLOAT16)
    assert found["b"].tolist() == [1.5, -2]
    assert found["s"] == 2.5


def test_training_data_and_models_of_an_earlier_version_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with np.load(FILES / "lessons.npz") as arrays:
        monkeypatch.setattr(training_data, "FEATURE_VERSION", json.loads(arrays["header"].tobytes())["feature_version"])
        features, seconds = arrays["features0"], arrays["seconds0"]
    # The columns that it had.
    monkeypatch.setattr(xgb, "FEATURE_NAMES", tuple(name for name in FEATURE_NAMES if name != "tile_conflicts"))
    (batch,) = training_data.batches_from_bytes((FILES / "lessons.npz").read_bytes())
    assert batch.task_key == "task"
    np.testing.assert_array_equal(batch.features, features)
    np.testing.assert_array_equal(batch.seconds, seconds)
    model = XGBModel.load(FILES / "model.npz")
    assert len(set(model.predict(features))) > 1
    again = XGBModel.from_bytes(model.to_bytes())
    np.testing.assert_array_equal(again.predict(features), model.predict(features))
