"""Files that version 0.1 wrote load, and compute what they did."""

import platform
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import retune
from retune.compiler import load_module, vm
from retune.compiler.runtime.device import cpu
from tests.support.dynamic_models import BOOL, INT64, Array, floats, model, node, reference, tensor

STORED = Path(__file__).parent.parent.parent / "formats" / "0.1"


def known_shapes() -> onnx.ModelProto:
    """Two products of known shapes, a reshape between kernels, and a result that is another in a second shape."""
    nodes = [
        node("MatMul", ["x", "w"], ["first"]),
        node("Softmax", ["first"], ["soft"], axis=1),
        node("Reshape", ["soft", "shape"], ["wide"]),
        node("MatMul", ["wide", "v"], ["out"]),
        node("Reshape", ["out", "flat"], ["same"]),
    ]
    weights = {"w": floats(24, 24), "v": floats(12, 6), "shape": np.array([10, 12]), "flat": np.array([60])}
    return model(nodes, [tensor("x", [5, 24])], [tensor("out", [10, 6]), tensor("same", [60])], weights)


def unknown_shapes() -> onnx.ModelProto:
    """A product of unknown length, and its places that are not zero, whose number depends on data."""
    nodes = [
        node("MatMul", ["x", "w"], ["y"]),
        node("Relu", ["y"], ["z"]),
        node("NonZero", ["z"], ["at"]),
    ]
    outputs = [tensor("z", ["n", 5]), tensor("at", [2, None], INT64)]
    return model(nodes, [tensor("x", ["n", 6])], outputs, {"w": floats(6, 5)})


def control_flow() -> onnx.ModelProto:
    """A loop that collects rows, with a branch in its body, and one whose array gets a dimension more in every turn."""
    ways = [helper.make_graph([node(op, ["carried"], [op])], op, [], [tensor(op, None)]) for op in ("Tanh", "Neg")]
    iteration = [tensor("i", [], INT64), tensor("on", [], BOOL), tensor("carried", None)]
    collecting = helper.make_graph(
        [
            node("ReduceSum", ["carried"], ["sum"], keepdims=0),
            node("Less", ["sum", "zero"], ["negative"]),
            node("If", ["negative"], ["way"], then_branch=ways[0], else_branch=ways[1]),
            node("Add", ["way", "x"], ["more"]),
            node("Identity", ["more"], ["row"]),
            node("Identity", ["on"], ["again"]),
        ],
        "collecting",
        iteration,
        [tensor("again", [], BOOL), tensor("more", None), tensor("row", None)],
    )
    growing = helper.make_graph(
        [
            node("Unsqueeze", ["carried", "first"], ["above"]),
            node("Add", ["above", "one"], ["grown"]),
            node("Identity", ["on"], ["again"]),
        ],
        "growing",
        iteration,
        [tensor("again", [], BOOL), tensor("grown", None)],
    )
    nodes = [
        node("Loop", ["count", "", "x"], ["last", "rows"], body=collecting),
        node("Loop", ["count", "", "last"], ["grown"], body=growing),
        node("Shape", ["grown"], ["shape"]),
    ]
    outputs = [tensor("last", [None]), tensor("rows", [None, None]), tensor("shape", [None], INT64)]
    weights = {"zero": np.zeros((), np.float32), "one": np.ones((), np.float32), "first": np.array([0])}
    return model(nodes, [tensor("count", [], INT64), tensor("x", ["n"])], outputs, weights)


CASES: dict[str, tuple[onnx.ModelProto, list[dict[str, Array]]]] = {
    "known_shapes": (known_shapes(), [{"x": floats(5, 24)}, {"x": floats(5, 24, seed=1)}]),
    "unknown_shapes": (unknown_shapes(), [{"x": floats(rows, 6)} for rows in (3, 7, 3)]),
    "control_flow": (control_flow(), [{"count": np.array(n), "x": floats(4)} for n in (0, 1, 3)]),
}


pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the stored code is for x86-64 with AVX2")


def _write() -> None:
    """Write the executables again, after a change of their format."""
    for name, (source, _) in CASES.items():
        vm.compile(source, "llvm -mcpu=x86-64-v3", threads=1).export_library(STORED / f"{name}.retune")


@pytest.mark.parametrize("memory", ["pooled", "naive"])
@pytest.mark.parametrize("name", CASES)
def test_an_executable_of_an_earlier_version_computes_the_same(name: str, memory: str) -> None:
    source, given = CASES[name]
    machine = vm.VirtualMachine(vm.Executable.load(STORED / f"{name}.retune"), cpu(), memory)
    for inputs in given:
        for result, expected in zip(machine.run(**inputs), reference(source, inputs), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
            assert result.shape == expected.shape


@pytest.mark.parametrize("name", ["network.retune", "network.so"])
def test_a_network_of_an_earlier_version_computes_the_same(name: str) -> None:
    source, (inputs, _) = CASES["known_shapes"]
    for result, expected in zip(retune.load(STORED / name)(**inputs), reference(source, inputs), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["module.retune", "module.so"])
def test_a_module_of_an_earlier_version_computes_the_same(name: str) -> None:
    x, result = floats(6, 4), np.zeros((6, 4), np.float32)
    load_module(STORED / name)["add_one"](x, result)
    np.testing.assert_array_equal(result, x + 1)
