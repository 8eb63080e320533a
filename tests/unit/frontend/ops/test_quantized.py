"""Networks quantized by ONNX Runtime's own tool run in bytes, and give what ONNX Runtime gives but for a few roundings.

A quantum is the scale of the output. Where we and ONNX Runtime round a number that lies between two of them, its other
order of multiplications may choose the other one; that is one quantum, in a few elements.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType

from retune.compiler.core.errors import MeasureError
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.pipeline import optimize
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.tune import compare
from retune.compiler.tune.compare import compare_networks
from retune.compiler.tune.onnx_runtime import OnnxRuntime
from tests.support.quantized_models import FORMS, MODELS, Floats, inputs, quantized

MOST_UNEQUAL = 0.02
"""The share of elements that may be one quantum off."""


def _compare(name: str, model: onnx.ModelProto, results: list[Floats]) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    # Optimized, ONNX Runtime sums products of bytes in 16 bits on CPUs without VNNI, and saturates.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    expected = [session.run(None, {"x": array})[0] for array in inputs(MODELS[name][1], len(results))]
    scales = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    last = next(node for node in model.graph.node if "y" in node.output)
    quantum = float(scales[last.input[1]])
    apart = np.rint(np.abs(np.stack(results) - np.stack(expected)) / quantum)
    assert apart.max() <= 1
    assert (apart > 0).mean() <= MOST_UNEQUAL
    assert len(np.unique(np.stack(results))) > 20


def _optimized(model: onnx.ModelProto) -> Graph:
    graph = optimize(load_model(model))
    assert not [node for node in graph.nodes if node.op in ("quantize", "dequantize")]
    return graph


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_quantized_models_run_in_bytes_and_match_onnxruntime(name: str, form: dict[str, Any], tmp_path: Path) -> None:
    model = quantized(name, form, tmp_path)
    graph = _optimized(model)
    products = {node.op for node in graph.nodes if node.op in ("conv2d", "dense", "qconv2d", "qdense")}
    if form["weight_type"] == QuantType.QInt8:
        assert products == ({"qconv2d", "qdense"} if name == "cnn" else {"qdense"})
    _compare(name, model, [evaluate(graph, {"x": array})[0] for array in inputs(MODELS[name][1], 4)])


def test_compiled_quantized_models_match_onnxruntime(tmp_path: Path) -> None:
    model = quantized("cnn", FORMS[0], tmp_path)
    executor = GraphExecutor(compile_graph(_optimized(model), Target.host()))
    results = []
    for array in inputs(MODELS["cnn"][1], 3):
        executor.set_input("x", array)
        executor.run()
        results.append(executor.get_output(0).copy())
    _compare("cnn", model, results)


def test_a_comparison_takes_exact_sums_of_bytes_for_right(tmp_path: Path) -> None:
    """Optimized, ONNX Runtime's own are off by several per cent on CPUs without VNNI."""
    model = quantized("mlp", FORMS[0], tmp_path)
    compile_graph(_optimized(model), Target.host()).save(tmp_path / "network.retune")
    assert compare_networks({"tuned": tmp_path / "network.retune"}, model.SerializeToString(), 1, 0).is_right


def test_a_comparison_times_the_reference_though_it_has_no_exact_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Optimized(OnnxRuntime):
        def __init__(self, model: bytes | str, threads: int, *, is_optimized: bool = True) -> None:
            if not is_optimized:
                raise MeasureError("no kernel")
            super().__init__(model, threads)

    monkeypatch.setattr(compare, "OnnxRuntime", Optimized)
    model = quantized("mlp", FORMS[0], tmp_path)
    compile_graph(_optimized(model), Target.host()).save(tmp_path / "network.retune")
    found = compare_networks({"tuned": tmp_path / "network.retune"}, model.SerializeToString(), 1, 0)
    assert [one.name for one in found.contenders][:2] == ["tuned", compare.REFERENCE]
    assert (found.reference, found.note) == (compare.REFERENCE, "no kernel")


@pytest.mark.parametrize("kind", [TensorProto.UINT8, TensorProto.INT8])
def test_a_product_with_a_constant_matrix_of_bytes_is_summed_from_bytes(kind: int) -> None:
    rng = np.random.default_rng(9)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    limits = np.iinfo(dtype)
    weights = {"w": rng.integers(-90, 90, (12, 7)).astype(np.int8), "wz": rng.integers(-30, 30, 7).astype(np.int8)}
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w", "z", "wz"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", kind, (2, 5, 12)), helper.make_tensor_value_info("z", kind, ())],
        [helper.make_tensor_value_info("y", TensorProto.INT32, (2, 5, 7))],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x, zero = rng.integers(limits.min, limits.max, (2, 5, 12)).astype(dtype), np.array(limits.max - 100, dtype)
    imported = optimize(load_model(model))
    assert "qdense" in {node.op for node in imported.nodes}
    (found,) = evaluate(imported, {"x": x, "z": zero})
    wide = (x.astype(np.int32) - zero) @ (weights["w"].astype(np.int32) - weights["wz"])
    np.testing.assert_array_equal(found, wide)
