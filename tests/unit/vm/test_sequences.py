"""Networks whose inputs and outputs are sequences and optional values, in the virtual machine."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import retune
from retune.compiler import vm
from retune.compiler.core.errors import MachineError, ModelFormatError, RetuneError, ShapeMismatchError
from retune.compiler.frontend.program import load_program
from retune.compiler.graph.program import Call, HostCall
from tests.support.dynamic_models import model, tensor
from tests.support.run_program import run_program

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


def sequence(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, FLOAT, None)


def optional(name: str) -> onnx.ValueInfoProto:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    return helper.make_value_info(name, kind)


def edited() -> onnx.ModelProto:
    """Appends a tensor to a sequence, multiplies its first element, and says whether an optional value is present."""
    nodes = [
        node("SequenceInsert", ["s", "x"], ["more"]),
        node("SequenceAt", ["s", "zero"], ["first"]),
        node("MatMul", ["first", "x"], ["y"]),
        node("SequenceLength", ["more"], ["n"]),
        node("OptionalHasElement", ["o"], ["has"]),
    ]
    results = [sequence("more"), tensor("y", [None, None]), tensor("n", [], INT64), tensor("has", [], BOOL)]
    return model(nodes, [sequence("s"), tensor("x", [4, 4]), optional("o")], results, {"zero": np.asarray(0)})


def appending() -> onnx.ModelProto:
    """A loop that appends scaled copies of a tensor to a sequence, as often as its input says."""
    body = helper.make_graph(
        [
            node("Identity", ["on"], ["still"]),
            node("Cast", ["i"], ["f"], to=FLOAT),
            node("Mul", ["x", "f"], ["row"]),
            node("SequenceInsert", ["rows", "row"], ["more"]),
        ],
        "body",
        [tensor("i", [], INT64), tensor("on", [], BOOL), sequence("rows")],
        [tensor("still", [], BOOL), sequence("more")],
    )
    nodes = [
        node("SequenceEmpty", [], ["none"]),
        node("Loop", ["count", "", "none"], ["rows"], body=body),
        node("ConcatFromSequence", ["rows"], ["y"], axis=0),
        node("Relu", ["y"], ["z"]),
    ]
    fed = [tensor("x", [None, 3]), tensor("count", [], INT64)]
    return model(nodes, fed, [sequence("rows"), tensor("z", [None, 3])])


def expected(source: onnx.ModelProto, inputs: dict[str, Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    results: list[Any] = session.run(None, inputs)
    return results


def assert_equal(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, list):
        assert isinstance(ours, list | tuple)
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert_equal(mine, other)
    elif theirs is None:
        assert ours is None
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def random(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, "float32")


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("value", [None, random(2)])
def test_a_network_takes_and_returns_lists_and_none(length: int, value: Any, tmp_path: Path) -> None:
    source = edited()
    inputs = {"s": [random(rows, 4) for rows in range(1, length + 1)], "x": random(4, 4), "o": value}
    theirs = [[*inputs["s"], inputs["x"]], inputs["s"][0] @ inputs["x"], length + 1, value is not None]
    network = retune.compile(source, dynamic=True)
    assert_equal(list(network(**inputs)), theirs)
    sequences: dict[str, Any] = {**inputs, "s": tuple(inputs["s"])}
    assert_equal(list(run_program(load_program(source), sequences)), theirs)
    loaded = retune.load(network.save(tmp_path / "network.retune"))
    assert loaded.inputs == network.inputs
    assert loaded.inputs["s"] == "sequence of float32"
    assert_equal(list(loaded(**inputs)), theirs)


@pytest.mark.parametrize("count", [1, 4])
def test_a_loop_returns_the_sequence_that_it_appends_to(count: int) -> None:
    source, inputs = appending(), {"x": random(2, 3), "count": np.asarray(count)}
    machine = vm.VirtualMachine(vm.compile(source))
    results = machine.run(**inputs)
    assert_equal(list(results), expected(source, inputs))
    rows = results[0]
    rows[0][...] = 7  # the caller's own: no other result shares its memory
    assert_equal(list(machine.run(**inputs)), expected(source, inputs))


def test_a_sequence_that_stays_inside_is_no_statement() -> None:
    """Only what leaves a region is computed by NumPy: other sequences fuse with what reads them."""
    parts = [node("SplitToSequence", ["x"], ["parts"], axis=1), node("SequenceAt", ["parts", "one"], ["part"])]
    double = node("Add", ["part", "part"], ["y"])
    fed, weights = [tensor("x", [None, 4])], {"one": np.asarray(1)}
    inside = model([*parts, double], fed, [tensor("y", [None, 1])], weights)
    assert [type(statement) for statement in load_program(inside).main.body] == [Call]
    outside = model([*parts, double], fed, [tensor("y", [None, 1]), sequence("parts")], weights)
    assert {type(statement) for statement in load_program(outside).main.body} == {HostCall, Call}
    x = random(5, 4)
    ours = vm.VirtualMachine(vm.compile(outside)).run(x=x)
    assert_equal(list(ours), [2 * x[:, 1:2], [x[:, index : index + 1] for index in range(4)]])


def test_results_share_no_memory_with_inputs() -> None:
    source = model([node("Identity", ["s"], ["t"])], [sequence("s")], [sequence("t")])
    array = random(4, 16)
    (mine,) = vm.VirtualMachine(vm.compile(source)).run(s=[array])
    assert not np.shares_memory(mine, array)
    np.testing.assert_array_equal(mine, array)


_WRONG = [
    ({"s": random(4, 4)}, "the input s: sequence of float32 takes a list of arrays, not a ndarray"),
    ({"s": None}, "the input s: sequence of float32 is not optional, and is given None"),
    ({"s": [random(4), None]}, "the input s: sequence of float32 takes a list of arrays, not one with None in it"),
    ({"s": [random(4).astype("float64")]}, "array 0 of the input s: sequence of float32 has elements of float64"),
    ({"s": []}, "position 0 is outside a sequence of 0"),
    ({"x": [random(4, 4)]}, r"the input x: float32\[4, 4\]: arrays and numbers are arguments, not a list"),
    ({"o": [random(4)]}, "the input o: optional tensor of float32: arrays and numbers are arguments, not a list"),
]


@pytest.mark.parametrize(("wrong", "message"), _WRONG)
def test_a_value_of_another_form_is_refused_in_a_sentence(wrong: dict[str, Any], message: str) -> None:
    machine = vm.VirtualMachine(vm.compile(edited()))
    inputs = {"s": [random(4, 4)], "x": random(4, 4), "o": None}
    with pytest.raises((MachineError, ShapeMismatchError), match=message):
        machine.run(**{**inputs, **wrong})
    machine.run(**inputs)


def test_fixed_shapes_refuse_sequences() -> None:
    with pytest.raises(RetuneError, match=r"the input s: sequence of float32 is no tensor, .*: pass dynamic=True"):
        retune.compile(edited())
    with pytest.raises(ModelFormatError, match="shapes are for tensors"):
        load_program(edited(), shapes={"s": (1,)})


def test_a_map_is_refused() -> None:
    kind = onnx.TypeProto()
    kind.map_type.key_type = INT64
    kind.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(FLOAT, []))
    source = model([node("Identity", ["x"], ["y"])], [helper.make_value_info("x", kind)], [tensor("y", [])])
    with pytest.raises(ModelFormatError, match="input 'x' is no tensor, and no sequence of tensors or optional value"):
        load_program(source)
