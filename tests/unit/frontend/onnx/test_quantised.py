"""Networks quantised by ONNX Runtime's own tool run in bytes, and give what ONNX Runtime gives but for a few roundings.

A quantum is the scale of the output. Where we and ONNX Runtime round a number that lies between two of them, its other
order of multiplications may choose the other one; that is one quantum, in a few elements.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from retune.compiler.driver import compare
from retune.compiler.driver.compare import compare_networks
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.onnx_runtime import OnnxRuntime
from retune.compiler.errors import MeasureError
from retune.compiler.executor.graph_executor import GraphExecutor
from retune.compiler.frontend.onnx.importer import load_model
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.pipeline import optimize
from retune.compiler.target import Target

Floats = NDArray[np.float32]

MOST_UNEQUAL = 0.02
"""The share of elements that may be one quantum off."""


class _Images(CalibrationDataReader):  # type: ignore[misc]
    """Seeded inputs to calibrate with."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._left: Iterator[dict[str, Floats]] = iter([{"x": array} for array in inputs(shape, 6)])

    def get_next(self) -> dict[str, Floats] | None:
        """The next one, None after the last."""
        return next(self._left, None)


def inputs(shape: tuple[int, ...], count: int) -> list[Floats]:
    rng = np.random.default_rng(11)
    return [rng.standard_normal(shape, dtype=np.float32) for _ in range(count)]


def _model(nodes: list[onnx.NodeProto], shape: tuple[int, ...], weights: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
    rng = np.random.default_rng(5)
    arrays = {
        name: rng.normal(0, (2 / max(1, math.prod(extents[1:]))) ** 0.5, extents).astype(np.float32)
        for name, extents in weights.items()
    }
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return onnx.shape_inference.infer_shapes(model)


def cnn() -> onnx.ModelProto:
    """Convolutions of several forms, a residual sum, both pools, a dense layer."""
    make, pads = helper.make_node, [1, 1, 1, 1]
    nodes = [
        make("Conv", ["x", "w1", "b1"], ["c1"], pads=pads),
        make("Relu", ["c1"], ["r1"]),
        make("MaxPool", ["r1"], ["p1"], kernel_shape=[3, 3], strides=[2, 2], pads=pads),
        make("Conv", ["p1", "w2", "b2"], ["c2"], pads=pads),
        make("Relu", ["c2"], ["r2"]),
        make("Conv", ["r2", "w3"], ["c3"], pads=pads, group=16),
        make("Conv", ["c3", "w4", "b4"], ["c4"]),
        make("Add", ["c4", "p1"], ["s"]),
        make("Relu", ["s"], ["r4"]),
        make("GlobalAveragePool", ["r4"], ["g"]),
        make("Flatten", ["g"], ["f"]),
        make("Gemm", ["f", "w5", "b5"], ["y"], transB=1),
    ]
    weights = {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (16, 16, 3, 3), "b2": (16,), "w3": (16, 1, 3, 3)}
    weights |= {"w4": (16, 16, 1, 1), "b4": (16,), "w5": (10, 16), "b5": (10,)}
    return _model(nodes, (2, 3, 12, 12), weights)


def mlp() -> onnx.ModelProto:
    """Two dense layers."""
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["m"]),
        helper.make_node("Add", ["m", "b2"], ["y"]),
    ]
    return _model(nodes, (4, 32), {"w1": (48, 32), "b1": (48,), "w2": (48, 10), "b2": (10,)})


MODELS = {"cnn": (cnn, (2, 3, 12, 12)), "mlp": (mlp, (4, 32))}
FORMS: list[dict[str, Any]] = [
    {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True},
    {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8, "per_channel": False},
    {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8, "per_channel": False},
]


def quantised(name: str, form: dict[str, Any], folder: Path) -> onnx.ModelProto:
    """One of `MODELS` in QDQ form."""
    build, shape = MODELS[name]
    source, target = folder / "float.onnx", folder / "bytes.onnx"
    onnx.save(build(), source)
    quantize_static(source, target, _Images(shape), quant_format=QuantFormat.QDQ, **form)
    return onnx.load(target)


def _compare(name: str, model: onnx.ModelProto, results: list[Floats]) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    # Optimised, ONNX Runtime sums products of bytes in 16 bits on processors without VNNI, and saturates.
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


def _optimised(model: onnx.ModelProto) -> Graph:
    graph = optimize(load_model(model))
    assert not [node for node in graph.nodes if node.op in ("quantize", "dequantize")]
    return graph


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MODELS)
def test_in_bytes(name: str, form: dict[str, Any], tmp_path: Path) -> None:
    model = quantised(name, form, tmp_path)
    graph = _optimised(model)
    products = {node.op for node in graph.nodes if node.op in ("conv2d", "dense", "qconv2d", "qdense")}
    if form["weight_type"] == QuantType.QInt8:
        assert products == ({"qconv2d", "qdense"} if name == "cnn" else {"qdense"})
    _compare(name, model, [evaluate(graph, {"x": array})[0] for array in inputs(MODELS[name][1], 4)])


def test_compiled(tmp_path: Path) -> None:
    model = quantised("cnn", FORMS[0], tmp_path)
    executor = GraphExecutor(compile_graph(_optimised(model), Target.host()))
    results = []
    for array in inputs(MODELS["cnn"][1], 3):
        executor.set_input("x", array)
        executor.run()
        results.append(executor.get_output(0).copy())
    _compare("cnn", model, results)


def test_a_comparison_takes_exact_sums_of_bytes_for_right(tmp_path: Path) -> None:
    """Optimised, ONNX Runtime's own are off by several per cent on processors without VNNI."""
    model = quantised("mlp", FORMS[0], tmp_path)
    compile_graph(_optimised(model), Target.host()).save(tmp_path / "network.retune")
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
    model = quantised("mlp", FORMS[0], tmp_path)
    compile_graph(_optimised(model), Target.host()).save(tmp_path / "network.retune")
    found = compare_networks({"tuned": tmp_path / "network.retune"}, model.SerializeToString(), 1, 0)
    assert [one.name for one in found.contenders] == ["tuned", compare.REFERENCE]
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
