"""Products with weights of a few bits compute their definition, and the weights stay packed in kernels and files."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import retune
from retune.compiler import te
from retune.compiler.core.dtype import NARROW_INTEGERS, finite_limit
from retune.compiler.core.target import Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.pipeline import optimize
from retune.compiler.ops import OPS, few_bits
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.evaluate import evaluate as te_evaluate
from tests.support.contributed.case import Case, Draw
from tests.support.fenced import fenced
from tests.support.tiers import long_rows

Array = np.ndarray[Any, Any]
_FORMS = [
    (bits, block, depth, columns)
    for bits in (2, 4, 8)
    for block in (16, 32, 128)
    for depth, columns in ((256, 64), (96, 33), (131, 5), (1, 17))
]
_QUICK = [(4, 32, 256, 64), (4, 16, 131, 5), (2, 32, 96, 33), (8, 128, 96, 33), (4, 128, 1, 17)]


def _codes(packed: Array, bits: int) -> Array:
    """The codes of each row of bytes, low bits first."""
    parts = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(packed.shape[0], -1).astype("float64")


def _case(draw: Draw, form: tuple[int, int, int, int], rows: int, *, zeros: str, grouped: bool) -> Case:
    bits, block, depth, columns = form
    blocks = -(-depth // block)
    operands: dict[str, Array | None] = {
        "a": draw.real(rows, depth),
        "b": draw.stored("uint8", columns, blocks, block * bits // 8),
        "scales": draw.scale(columns, blocks),
        "zeros": None,
        "groups": draw.rng.integers(0, blocks, depth).astype("int32") if grouped else None,
        "bias": draw.real(columns),
    }
    if zeros == "packed":
        operands["zeros"] = draw.stored("uint8", columns, -(-blocks * bits // 8))
    elif zeros == "floats":
        operands["zeros"] = draw.scale(columns, blocks, high=1 << bits)
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": block, "accuracy_level": 4}
    return Case("MatMulNBits", operands, attributes, constants=frozenset({"b", "scales", "zeros", "groups", "bias"}))


def _defined(case: Case) -> Array:
    """The definition, in float64."""
    values: dict[str, Any] = dict(case.operands)
    depth, block, bits = (case.attributes[key] for key in ("K", "block_size", "bits"))
    shape = values["scales"].shape
    zero = values["zeros"]
    zero = np.full(shape, 1 << (bits - 1)) if zero is None else zero
    zero = _codes(zero, bits)[:, : shape[1]] if zero.dtype == "uint8" else zero
    group = np.arange(depth) // block if values["groups"] is None else values["groups"]
    codes = _codes(values["b"].reshape(shape[0], -1), bits)[:, :depth]
    weight = (codes - zero[:, group]) * values["scales"].astype("float64")[:, group]
    return np.asarray(values["a"].astype("float64") @ weight.T + values["bias"])


def _error(case: Case, path: Path) -> float:
    """The largest error of the network, saved and loaded, relative to the largest result."""
    expected = _defined(case)
    retune.compile(case.model([expected.astype("float32")])).save(path)
    found = retune.load(path)(case.operands["a"])
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(("bits", "block", "depth", "columns"), long_rows(_QUICK, _FORMS))
def test_products_with_packed_weights_compute_the_definition(
    bits: int, block: int, depth: int, columns: int, tmp_path: Path
) -> None:
    for seed, (rows, zeros, grouped) in enumerate(((1, "packed", False), (9, "floats", False), (3, "none", True))):
        case = _case(Draw(seed), (bits, block, depth, columns), rows, zeros=zeros, grouped=grouped)
        assert _error(case, tmp_path / "n.retune") < 1e-5


def test_zero_points_of_groups_are_those_of_the_group(tmp_path: Path) -> None:
    """ONNX Runtime 1.32 reads others."""
    assert _error(_case(Draw(0), (2, 16, 100, 20), 3, zeros="packed", grouped=True), tmp_path / "n.retune") < 1e-5


def test_a_wrong_shift_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(few_bits, "_shift", lambda p, bits: p * bits + 1)
    assert _error(_case(Draw(0), (4, 32, 64, 32), 2, zeros="none", grouped=False), tmp_path / "n.retune") > 1e-2


def test_weights_stay_packed_in_kernels_and_files(tmp_path: Path) -> None:
    case = _case(Draw(0), (4, 32, 1024, 512), 1, zeros="packed", grouped=False)
    model = case.model([np.zeros((1, 512), "float32")])
    network = compile_graph(optimize(load_model(model)), Target.host())
    held = sum(array.nbytes for array in network.constants.values())
    bytes_of_codes, bytes_of_scales = 1024 * 512 // 2, 1024 // 32 * 512 * 4
    assert bytes_of_codes <= held <= bytes_of_codes + 2 * bytes_of_scales + 4096
    retune.compile(model).save(tmp_path / "n.retune")
    assert (tmp_path / "n.retune").stat().st_size < 1.2 * held + 100_000


def _dequantized(dtype: str, axis: int, block: int, *, zeros: bool) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """A matrix of 64 x 48, or of 48 x 64 with blocks along the second axis, from a constant of `dtype`."""
    rng = np.random.default_rng(axis)
    shape = (64, 48) if axis == 0 else (48, 64)
    scales: tuple[int, ...] = (64 // block, 48) if axis == 0 else (48, 64 // block)
    scales = scales if block < 64 else (48,)
    low, high = (int(finite_limit(dtype, is_least=is_least)) for is_least in (True, False))
    values = {
        "codes": rng.integers(low, high + 1, shape).astype("int8").astype(dtype),
        "scales": rng.uniform(0.1, 0.3, scales).astype("float32"),
    }
    if zeros:
        values["zeros"] = rng.integers(low, high + 1, scales).astype("int8").astype(dtype)
    attributes: dict[str, Any] = {"axis": axis, "block_size": block} if block < 64 else {"axis": 1 - axis}
    return [helper.make_node("DequantizeLinear", list(values), ["w"], **attributes)], values


def _model(
    nodes: list[onnx.NodeProto], values: dict[str, Array], shape: tuple[int, ...], result: tuple[int, ...]
) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)]
    weights = [numpy_helper.from_array(array, name) for name, array in values.items()]
    graph = helper.make_graph(nodes, "product", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])


@pytest.mark.parametrize("dtype", NARROW_INTEGERS)
@pytest.mark.parametrize(("axis", "block"), [(0, 16), (0, 64), (1, 16), (1, 64)])
def test_a_product_with_a_dequantized_matrix_keeps_it_packed(dtype: str, axis: int, block: int) -> None:
    for zeros in (False, True):
        nodes, values = _dequantized(dtype, axis, block, zeros=zeros)
        if axis == 0:
            nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"]))
        elif zeros:
            nodes.append(helper.make_node("Gemm", ["x", "w"], ["y"], transB=1))
        else:
            nodes += [helper.make_node("Transpose", ["w"], ["t"]), helper.make_node("MatMul", ["x", "t"], ["y"])]
        shape = (3, 64) if axis else (2, 3, 64)
        model = _model(nodes, values, shape, (*shape[:-1], 48))
        graph = optimize(load_model(model))
        assert "dense_bits" in [node.op for node in graph.nodes]
        assert sum(array.nbytes for array in graph.constants.values()) < 64 * 48 * 2
        x = np.random.default_rng(1).standard_normal(shape).astype("float32")
        expected: Any = ReferenceEvaluator(model).run(None, {"x": x})
        np.testing.assert_allclose(retune.compile(model)(x), expected[0], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_other_readers_of_a_dequantized_matrix_unpack_it(axis: int) -> None:
    nodes, values = _dequantized("int4", axis, 16, zeros=True)
    values["rows"] = np.array([5, 0, 7, 40])
    nodes += [helper.make_node("Gather", ["w", "rows"], ["g"]), helper.make_node("Mul", ["g", "x"], ["y"])]
    columns = 48 if axis == 0 else 64
    model = _model(nodes, values, (1, columns), (4, columns))
    x = np.random.default_rng(1).standard_normal((1, columns)).astype("float32")
    expected: Any = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(retune.compile(model)(x), expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_kernels_read_nothing_beyond_packed_weights(bits: int) -> None:
    """Of ragged columns, packed by the kernel and not, between fences."""
    rng, held = np.random.default_rng(bits), 8 // bits
    for columns in (1, 5, 17, 33, 70):
        arrays = [
            rng.standard_normal((3, 6 * held)).astype("float32"),
            rng.integers(0, 256, (2, 3, columns), np.uint8),
            *(rng.uniform(0.1, 0.3, (2, columns)).astype("float32") for _ in range(2)),
        ]
        inputs = [te.placeholder(array.shape, array.dtype.name, f"x{i}") for i, array in enumerate(arrays)]
        for constants in (frozenset(), frozenset(inputs[1:])):
            y = OPS["dense_bits"].tensor(inputs, {"bits": bits}, name="y", constants=constants)
            dag, target = ComputeDAG([*inputs, y]), Target.host()
            hardware = hardware_of(target, 1)
            task = SearchTask("t", dag, target, hardware)
            found = fenced(build_kernel(task, default_steps(dag, hardware), "kernel"), arrays)
            (expected,) = te_evaluate([y], dict(zip(inputs, arrays, strict=True)))
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
