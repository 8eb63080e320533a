"""How far outputs may be from the exact ones, in every type: right networks pass, planted faults do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

from retune import compiler
from retune.compiler.frontend.offload.wider import WiderModel
from retune.compiler.tune import compare
from retune.compiler.tune.accuracy import errors_of, find_error_limits
from retune.compiler.tune.onnx_runtime import OnnxRuntime
from tests.support.tiers import long_except

Array = NDArray[Any]
RANDOM = np.random.default_rng(0)
FAULTS: dict[str, Callable[[Array], Array]] = {
    "zeros": np.zeros_like,
    "negated": np.negative,
    "a tenth too large": lambda y: (y * np.asarray(1.1, y.dtype)).astype(y.dtype),
    "a row shifted": lambda y: np.concatenate([np.roll(y[:1], 1, axis=-1), y[1:]]),
}


def test_errors_are_relative_to_the_largest_and_the_mean_value() -> None:
    reference = [np.array([0.0, -10.0], np.float32), np.array([1.0], np.float32)]
    outputs = [np.array([0.5, -10.0], np.float32), np.array([1.02], np.float32)]
    np.testing.assert_allclose(errors_of(outputs, reference), [[0.05, 0.05], [0.02, 0.02]], rtol=1e-6)
    assert errors_of([np.zeros(2)], [np.zeros(2)]).tolist() == [[0.0, 0.0]]
    assert errors_of([np.ones(0)], [np.ones(0)]).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("wrong", [np.array([1.0, np.nan]), np.array([1.0, np.inf]), np.ones((1, 2))])
def test_no_number_and_another_shape_are_infinitely_wrong(wrong: Array) -> None:
    assert np.isinf(errors_of([wrong], [np.ones(2)])).all()


def test_equal_infinities_and_nans_are_right_and_hide_nothing() -> None:
    reference = [np.array([-np.inf, np.nan, 4.0, 2.0])]
    assert errors_of(reference, reference).tolist() == [[0.0, 0.0]]
    np.testing.assert_allclose(errors_of([np.array([-np.inf, np.nan, 5.0, 2.0])], reference)[0, 0], 0.25)
    for place, value in ((0, np.inf), (0, 0.0), (1, 0.0), (2, np.nan)):
        wrong = reference[0].copy()
        wrong[place] = value
        assert np.isinf(errors_of([wrong], reference)).all()


def _model(nodes: list[onnx.NodeProto], weights: dict[str, Array], kind: int, shape: list[int]) -> onnx.ModelProto:
    entries = [helper.make_tensor_value_info(name, kind, shape) for name in "xy"]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "net", entries[:1], entries[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _products(kind: int) -> onnx.ModelProto:
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weights = {name: (RANDOM.standard_normal((64, 64)) / 8).astype(dtype) for name in ("v", "w")}
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    return _model(nodes, weights, kind, [16, 64])


def _biased() -> onnx.ModelProto:
    """A convolution beside a bias so large that a rounding of the inputs changes less than that of the outputs."""
    dtype = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    weights = {
        "w": (RANDOM.standard_normal((8, 8, 3, 3)) / 160).astype(dtype),
        "bias": np.tile([4.5, -4.5], 4).astype(dtype),
    }
    nodes = [helper.make_node("Conv", ["x", "w", "bias"], ["y"], pads=[1] * 4)]
    return _model(nodes, weights, TensorProto.BFLOAT16, [1, 8, 16, 16])


def _ill_conditioned() -> onnx.ModelProto:
    """Small differences of large terms, which convolutions of float32 compute: exact digits are few."""
    weights: dict[str, Array] = {
        "v": RANDOM.standard_normal((8, 8, 3, 3), dtype=np.float32),
        "large": np.full((8, 1, 1), 3e3, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], pads=[1] * 4),
        helper.make_node("Add", ["a", "large"], ["b"]),
        helper.make_node("Mul", ["b", "b"], ["c"]),
        helper.make_node("Mul", ["large", "large"], ["d"]),
        helper.make_node("Sub", ["c", "d"], ["e"]),
        helper.make_node("Mul", ["large", "a"], ["f"]),
        helper.make_node("Sub", ["e", "f"], ["g"]),
        helper.make_node("Sub", ["g", "f"], ["y"]),
    ]
    return _model(nodes, weights, TensorProto.FLOAT, [1, 8, 16, 16])


def _tiny() -> onnx.ModelProto:
    """A sigmoid of large negative values, which ONNX Runtime computes with an error that is small beside 1."""
    weights: dict[str, Array] = {
        "w": RANDOM.standard_normal((64, 64)).astype(np.float32) / 8,
        "low": np.asarray([-14.0], np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "low"], ["b"]),
        helper.make_node("Sigmoid", ["b"], ["y"]),
    ]
    return _model(nodes, weights, TensorProto.FLOAT, [16, 64])


def _masked() -> onnx.ModelProto:
    """Scores of which half are -inf, as before a softmax, in values too rough for the first look."""
    mask = np.triu(np.full((64, 64), -np.inf, np.float16), 1)
    weights: dict[str, Array] = {"w": (RANDOM.standard_normal((64, 64)) / 8).astype(np.float16), "mask": mask}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "mask"], ["y"])]
    return _model(nodes, weights, TensorProto.FLOAT16, [64, 64])


def _int8(folder: Path) -> onnx.ModelProto:
    """Two convolutions that compute in int8, and whose output is quantized."""
    weights = {name: RANDOM.standard_normal((64, 64, 3, 3), dtype=np.float32) / 24 for name in ("v", "w")}
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w"], ["y"], pads=[1] * 4),
    ]
    model = _model(nodes, weights, TensorProto.FLOAT, [1, 64, 56, 56])

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        left = 2

        def get_next(self) -> dict[str, Array] | None:
            self.left -= 1
            return {"x": RANDOM.standard_normal((1, 64, 56, 56), dtype=np.float32)} if self.left >= 0 else None

    quantize_static(model, folder / "int8.onnx", Reader(), quant_format=QuantFormat.QDQ, per_channel=True)
    return onnx.load(folder / "int8.onnx")


def _few_bits() -> onnx.ModelProto:
    """A product that ONNX Runtime computes in int8, as `accuracy_level` lets it, and Retune in float32."""
    weights: dict[str, Array] = {
        "w": RANDOM.integers(0, 256, (64, 4, 16), np.uint8),
        "s": RANDOM.uniform(0.1, 0.2, (64, 4)).astype(np.float32),
    }
    attributes: dict[str, Any] = {"K": 128, "N": 64, "bits": 4, "block_size": 32, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **attributes)
    model = _model([node], weights, TensorProto.FLOAT, [16, 128])
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 64
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


MODELS: dict[str, Callable[[Path], onnx.ModelProto]] = {
    "float32": lambda _: _products(TensorProto.FLOAT),
    "float16": lambda _: _products(TensorProto.FLOAT16),
    "bfloat16": lambda _: _products(TensorProto.BFLOAT16),
    "biased": lambda _: _biased(),
    "ill-conditioned": lambda _: _ill_conditioned(),
    "tiny": lambda _: _tiny(),
    "masked": lambda _: _masked(),
    "int8": _int8,
    "few bits": lambda _: _few_bits(),
}


@pytest.mark.parametrize(
    "name", long_except(("ill-conditioned", "bfloat16", "biased", "tiny", "masked", "few bits"), MODELS)
)
def test_a_right_network_is_right_and_a_planted_fault_is_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "_time_interleaved", lambda runs, *_: dict.fromkeys(runs, (1.0, None)))
    monkeypatch.setattr("retune.compiler.tune.openvino.is_installed", lambda: False)
    model = MODELS[name](tmp_path)
    compiler.build_network(model, threads=1).export_library(tmp_path / "net.retune")
    faults = dict(FAULTS)
    if name == "int8":
        (quantum,) = WiderModel(model.SerializeToString()).quanta
        faults["all a quantum too large"] = lambda y: y + np.float32(quantum)
    plain = compare._outputs
    for fault, change in {"": np.asarray, **faults}.items():
        monkeypatch.setattr(compare, "_outputs", lambda *args, change=change: [change(y) for y in plain(*args)])
        comparison = compare.compare_networks({"tuned": tmp_path / "net.retune"}, model.SerializeToString(), 1, 0)
        assert comparison.is_right == (not fault), (fault, comparison)


def test_a_network_of_bytes_with_inputs_of_integers_alone_is_judged(tmp_path: Path) -> None:
    """A rounding changes none of its inputs: ONNX Runtime's usual outputs say how large an error may be."""
    rng = np.random.default_rng(0)
    weights = {"table": rng.standard_normal((20, 16)), "w": rng.standard_normal((16, 8))}
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["r"]),
            helper.make_node("Tanh", ["r"], ["x"]),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        "ids",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "f.onnx")
    quantize_dynamic(tmp_path / "f.onnx", tmp_path / "b.onnx")
    model, inputs = (tmp_path / "b.onnx").read_bytes(), {"ids": np.asarray([3, 1, 0, 2])}
    _, exact, limits = find_error_limits(model, 1, inputs, OnnxRuntime(model, 1).run(inputs), 1e-6)
    assert np.all(errors_of(exact, exact) <= limits)
    assert not np.all(errors_of([exact[0] * 1.5], exact) <= limits)
