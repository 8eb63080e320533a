"""Optional peers of networks take part where they take the file, and say why where they do not."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from benchmarks import onnx_peers, zoo
from benchmarks.network_peers import SESSION, _error, seeded_inputs, time_networks
from retune.compiler.core.errors import MeasureError
from retune.compiler.tune.onnx_runtime import OnnxRuntime

TAKES, REFUSES, FLATTENS = "takes", "refuses", "flattens"


class _Peer:
    """ONNX Runtime under another name, which may answer in one dimension."""

    def __init__(self, path: Path, *, is_flat: bool) -> None:
        self._session, self._is_flat = OnnxRuntime(str(path), 1), is_flat

    def run(self, inputs: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        outputs = [np.asarray(output) for output in self._session.run(inputs)]
        return [output.ravel() for output in outputs] if self._is_flat else outputs


def _load(backend: str, path: Path, *_: object) -> _Peer:
    if backend == REFUSES:
        raise MeasureError("refuses does not take the model: no Gemm")
    return _Peer(path, is_flat=backend == FLATTENS)


def test_a_peer_without_the_network_is_left_out_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_peers, "installed", lambda: (TAKES, REFUSES, FLATTENS))
    monkeypatch.setattr(onnx_peers, "load", _load)
    model, path = zoo.build("mlp"), tmp_path / "mlp.onnx"
    onnx.save_model(model, str(path))
    files = dict.fromkeys((SESSION, TAKES, REFUSES, FLATTENS), path)
    found = {peer.backend: peer for peer in time_networks(files, seeded_inputs(model), 1)}
    assert found[TAKES].error == 0.0
    assert found[TAKES].seconds > 0
    assert found[REFUSES].failure == "refuses does not take the model: no Gemm"
    assert found[FLATTENS].failure == "the outputs have shapes [(10,)], not [(1, 10)]"
    assert np.isnan(found[REFUSES].seconds)


@pytest.mark.long
@pytest.mark.parametrize("backend", [onnx_peers.IREE, onnx_peers.MNN, onnx_peers.NCNN])
def test_an_installed_peer_computes_what_onnx_runtime_computes(backend: str, tmp_path: Path) -> None:
    if backend not in onnx_peers.installed():
        pytest.skip(f"{backend} is not installed")
    model, path = zoo.build("mlp"), tmp_path / "mlp.onnx"
    onnx.save_model(model, str(path))
    inputs = seeded_inputs(model)
    (found,) = onnx_peers.load(backend, path, inputs, 1).run(inputs)
    (wanted,) = OnnxRuntime(str(path), 1).run(inputs)
    np.testing.assert_allclose(found, np.asarray(wanted, np.float32), rtol=1e-4, atol=1e-5)


def test_the_error_of_an_answer_that_is_no_number_is_none_either() -> None:
    wanted = [np.ones(3), np.ones(2)]
    assert np.isnan(_error([np.array([1, np.nan, 1]), np.ones(2)], wanted))
    assert _error([np.ones(3), np.zeros(2)], wanted) == 1.0
