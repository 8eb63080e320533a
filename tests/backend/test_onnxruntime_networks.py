"""Networks as ONNX Runtime's tools write them: its optimizer at every level, its quantizer, and its optimizer of
transformers. Each computes what ONNX Runtime computes for the same file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import QuantFormat, quantize_dynamic

from retune.compiler.core.errors import UnsupportedOperatorError
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.frontend.importer import load_model
from retune.compiler.frontend.model_file import operator_of
from retune.compiler.frontend.ops.contributed import nchwc
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.pipeline import optimize
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from tests.support.quantized_models import FORMS, MODELS, branches, inputs, lstm, quantized

Array = np.ndarray[Any, Any]
_LEVELS = {
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


def _session(path: Path, level: Any = None, written: Path | None = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = level or onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if written is not None:
        options.optimized_model_filepath = str(written)
    return onnxruntime.InferenceSession(path, options)


def _optimized(path: Path, level: str) -> Path:
    """The file that ONNX Runtime writes for a level."""
    written = path.with_name(f"{path.stem}_{level}.onnx")
    _session(path, _LEVELS[level], written)
    return written


def _operators(path: Path) -> set[str]:
    return {operator_of(node) for node in onnx.load(path).graph.node}


def _errors(path: Path, feeds: Mapping[str, Array]) -> tuple[list[float], set[str]]:
    """The largest error of each output of the optimized graph, relative to the output's largest number, and the
    operators of the graph.
    """
    expected = _session(path).run(None, dict(feeds))
    graph = optimize(load_model(path))
    fed = {value.name: feeds[value.name] for value in graph.inputs}
    pairs = zip(expected, evaluate(graph, fed), strict=True)
    return [float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs], {node.op for node in graph.nodes}


@pytest.mark.parametrize(
    ("level", "written"),
    [("basic", "Conv"), ("extended", "com.microsoft.FusedConv"), ("all", "com.microsoft.nchwc.Conv")],
)
def test_optimized_convolutions_match_onnxruntime(level: str, written: str, tmp_path: Path) -> None:
    onnx.save(branches(), tmp_path / "net.onnx")
    path = _optimized(tmp_path / "net.onnx", level)
    assert written in _operators(path)
    (x,) = inputs((1, 3, 16, 16), 1)
    errors, _ = _errors(path, {"x": x})
    assert max(errors) < 1e-5


def test_kernels_of_blocked_convolutions_match_onnxruntime(tmp_path: Path) -> None:
    onnx.save(branches(), tmp_path / "net.onnx")
    path = _optimized(tmp_path / "net.onnx", "all")
    (x,) = inputs((1, 3, 16, 16), 1)
    (expected,) = _session(path).run(None, {"x": x})
    executor = GraphExecutor(compile_graph(optimize(load_model(path)), Target.host()))
    executor.set_input("x", x)
    executor.run()
    np.testing.assert_allclose(executor.get_output(0), expected, rtol=1e-4, atol=1e-5)


def test_blocks_of_another_size_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(branches(), tmp_path / "net.onnx")
    path = _optimized(tmp_path / "net.onnx", "all")
    monkeypatch.setattr(nchwc, "block_size", lambda: 64)
    with pytest.raises(UnsupportedOperatorError, match="has no blocks of 64 channels: the file is for another CPU"):
        load_model(path)


@pytest.mark.parametrize("level", ["", "all"])
@pytest.mark.parametrize("form", FORMS[:2])
def test_quantized_operators_match_onnxruntime(
    form: dict[str, Any], level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "branches", (branches, (1, 3, 16, 16)))
    path = tmp_path / "net.onnx"
    onnx.save(quantized("branches", form, tmp_path, QuantFormat.QOperator), path)
    path = _optimized(path, level) if level else path
    wanted = {"QLinearAdd", "QLinearConcat", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearAveragePool", "QGemm"}
    assert {f"com.microsoft.{name}" for name in wanted} <= _operators(path)
    (x,) = inputs((1, 3, 16, 16), 1)
    errors, operators = _errors(path, {"x": x})
    # A byte may be off by one where a number lies between two; the outputs are of some 100 quanta.
    assert max(errors) < 0.02
    assert {"qconv2d", "qdense"} <= operators
    assert "conv2d" not in operators


@pytest.mark.parametrize("level", ["", "all"])
def test_a_dynamically_quantized_lstm_matches_onnxruntime(level: str, tmp_path: Path) -> None:
    onnx.save(lstm(), tmp_path / "net.onnx")
    quantize_dynamic(tmp_path / "net.onnx", tmp_path / "bytes.onnx")
    path = _optimized(tmp_path / "bytes.onnx", level) if level else tmp_path / "bytes.onnx"
    assert "com.microsoft.DynamicQuantizeLSTM" in _operators(path)
    (x,) = inputs((6, 2, 8), 1)
    errors, operators = _errors(path, {"x": x})
    assert max(errors) < 5e-3
    assert "qdense" in operators


def _transformer(kind: str, path: Path) -> dict[str, Array]:
    """Export a small network of a configuration of transformers; the result are inputs of it."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks.torch_models import declare_operators

    kept = declare_operators()
    import transformers

    sizes: dict[str, Any] = {"vocab_size": 100, "attn_implementation": "eager"}
    torch.manual_seed(0)
    if kind == "bert":
        sizes |= {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        module = transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False)
    else:
        sizes |= {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
        module = transformers.GPT2Model(transformers.GPT2Config(**sizes))
    del kept

    class Plain(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.module = module.eval()

        def forward(self, ids: Any, mask: Any) -> Any:
            caches = {"use_cache": False} if kind == "gpt2" else {}
            return self.module(input_ids=ids, attention_mask=mask, **caches).last_hidden_state

    ids = np.random.default_rng(0).integers(0, 100, (2, 9))
    mask = np.ones_like(ids)
    mask[1, 6:] = 0
    operands = (torch.from_numpy(ids), torch.from_numpy(mask))
    names = ["ids", "mask"]
    torch.onnx.export(Plain(), operands, path, input_names=names, dynamo=False, opset_version=17)
    return {"ids": ids, "mask": mask}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "written"), [("bert", {"Attention", "BiasGelu"}), ("gpt2", {"FastGelu", "SkipLayerNormalization"})]
)
def test_optimized_transformers_match_onnxruntime(kind: str, written: set[str], tmp_path: Path) -> None:
    from onnxruntime.transformers.optimizer import optimize_model

    path = tmp_path / "net.onnx"
    feeds = _transformer(kind, path)
    fused, few = tmp_path / "fused.onnx", tmp_path / "bytes.onnx"
    optimize_model(str(path), model_type=kind, num_heads=4, hidden_size=32, opt_level=0).save_model_to_file(str(fused))
    assert {f"com.microsoft.{name}" for name in written} <= _operators(fused)
    quantize_dynamic(fused, few, extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT})
    for source in (path, fused, few):
        for file in (source, _optimized(source, "all")):
            known = {entry.name for entry in onnx.load(file).graph.input}
            kinds = {node.name: node.type for node in _session(file).get_inputs()}
            fed = {n: a.astype("int32" if "int32" in kinds[n] else "int64") for n, a in feeds.items() if n in known}
            errors, _ = _errors(file, fed)
            assert max(errors) < 1e-4, file.name
