"""Files of packages are tried as their users would, and what goes wrong is told apart."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks import packaged_models

pytestmark = pytest.mark.long


def _save(path: Path, operator: str) -> None:
    entries = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["?", "?"]) for name in ("x", "y")]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    if operator == "Normalizer":
        node = helper.make_node(operator, ["x"], ["y"], domain="ai.onnx.ml", norm="L2")
    weights = [numpy_helper.from_array(np.ones((8, 4), np.float32), "w")]
    graph = helper.make_graph([node], "net", entries[:1], entries[1:], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def test_every_file_of_a_package_has_a_line_for_each_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"good": "x=2,8", "foreign": "x=2,8", "absent": ""}
    monkeypatch.setattr(packaged_models, "PACKAGES", {"package": ("1.0", files)})
    _save(tmp_path / "package" / "models" / "good.onnx", "MatMul")
    _save(tmp_path / "package" / "models" / "foreign.onnx", "Normalizer")
    out = tmp_path / "out.jsonl"
    packaged_models.main([str(tmp_path), "--out", str(out)])
    good, dynamic, foreign, _, absent = map(json.loads, out.read_text().splitlines())
    assert (good["result"], dynamic["result"], good["way"], dynamic["way"]) == ("right", "right", "static", "dynamic")
    assert good["error"] < 1e-6
    assert "ai.onnx.ml" in foreign["result"]
    assert absent["result"] == "there is no such file"
