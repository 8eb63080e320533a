"""Small files that ask for much, and files that onnx itself fails on, are refused with one sentence."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from retune.compiler.core.errors import ModelError, ModelFormatError, UnsupportedOperatorError
from retune.compiler.frontend import importer
from retune.compiler.frontend.importer import load_model

ModelOf = Callable[..., onnx.ModelProto]


def _of_functions(levels: int, calls: int) -> onnx.ModelProto:
    """A Relu in a chain of functions, each of which calls the next one so many times."""
    own = helper.make_opsetid("own", 1)
    functions, imports = [], [helper.make_opsetid("", 17), own]
    for level in range(levels):
        op, domain = ("Relu", "") if level == levels - 1 else (f"f{level + 1}", "own")
        names = ["a", *(f"t{number}" for number in range(calls - 1)), "b"]
        nodes = [helper.make_node(op, [one], [two], domain=domain) for one, two in pairwise(names)]
        functions.append(helper.make_function("own", f"f{level}", ["a"], ["b"], nodes, imports))
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("f0", ["x"], ["y"], domain="own")], "net", value[:1], value[1:])
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8)


def test_functions_within_bounds_are_inlined() -> None:
    assert len(load_model(_of_functions(5, 2)).nodes) == 32
    assert len(load_model(_of_functions(150, 1)).nodes) == 1


@pytest.mark.parametrize("levels", [30, 100])
def test_functions_of_too_many_nodes_are_refused_before_they_are_inlined(levels: int) -> None:
    with pytest.raises(ModelFormatError, match="more than 200,000 nodes once its functions are inlined"):
        load_model(_of_functions(levels, 2))


@pytest.mark.parametrize(("defined", "called"), [("", "ai.onnx"), ("ai.onnx", "")])
def test_both_names_of_the_standard_domain_are_counted_as_one(defined: str, called: str) -> None:
    model = _of_functions(18, 2)
    for function in model.functions:
        function.domain = defined
        for node in function.node:
            node.domain = called if node.op_type != "Relu" else ""
    model.graph.node[0].domain = called
    with pytest.raises(ModelFormatError, match="more than 200,000 nodes once its functions are inlined"):
        load_model(model)


def test_functions_of_too_many_bytes_are_refused_before_they_are_inlined() -> None:
    model = _of_functions(16, 2)
    weight = numpy_helper.from_array(np.zeros(1 << 14, np.float32))
    model.functions[15].node.append(helper.make_node("Constant", [], ["c"], value=weight))
    with pytest.raises(ModelFormatError, match="more than 2,147,483,647 bytes once its functions are inlined"):
        load_model(model)


@pytest.mark.parametrize("callee", ["f0", "f1"])
def test_functions_that_call_themselves_are_refused(callee: str) -> None:
    model = _of_functions(2, 1)
    model.functions[1].node[0].op_type, model.functions[1].node[0].domain = callee, "own"
    with pytest.raises(ModelFormatError, match="calls itself"):
        load_model(model)


def test_functions_nested_too_deep_for_the_inliner_are_refused() -> None:
    with pytest.raises(ModelFormatError, match="nested over 200 deep"):
        load_model(_of_functions(500, 1))


def _value(name: str, kind: int = TensorProto.FLOAT, shape: tuple[int, ...] = (2,)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _scan(length: int, nodes: int, *, grows: bool = True) -> onnx.ModelProto:
    """A scan; a state that grows cannot be in one kernel."""
    names = ["s", *(f"s{number}" for number in range(nodes))]
    made = [helper.make_node("Relu", [one], [two]) for one, two in pairwise(names)]
    if grows and nodes:
        made[0] = helper.make_node("Concat", ["s", "s"], ["s0"], axis=0)
    body = helper.make_graph(made, "body", [_value("s"), _value("r")], [_value(names[-1]), _value("r")])
    scan = helper.make_node("Scan", ["zero", "x"], ["last", "y"], body=body, num_scan_inputs=1)
    zero = numpy_helper.from_array(np.zeros(2, np.float32), "zero")
    graph = helper.make_graph([scan], "net", [_value("x", shape=(length, 2))], [_value("y", shape=(length, 2))], [zero])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_long_scans_that_fit_a_kernel_are_not_unrolled() -> None:
    assert len(load_model(_scan(300_000, 1, grows=False)).nodes) < 10


@pytest.mark.parametrize(("length", "nodes"), [(20_000, 1), (20_000, 2)])
def test_long_scans_are_refused_before_they_are_unrolled(length: int, nodes: int) -> None:
    with pytest.raises(UnsupportedOperatorError, match="runs for more than 10,000 iterations"):
        load_model(_scan(length, nodes))


def test_scans_with_large_bodies_are_refused_before_they_are_unrolled() -> None:
    with pytest.raises(UnsupportedOperatorError, match="more than 200,000 nodes once loops are unrolled"):
        load_model(_scan(9_000, 300))


def test_nested_loops_whose_bodies_have_no_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retune.compiler.frontend.ops.conversion.MOST_NODES", 500)
    counter, flag = _value("i", TensorProto.INT64, ()), _value("on", TensorProto.BOOL, ())
    inner = helper.make_graph([], "inner", [counter, flag, _value("v")], [flag, _value("v")])
    loop = helper.make_node("Loop", ["count", "on", "v"], ["w"], body=inner)
    going = [helper.make_node("Greater", ["count", "i"], ["goes"])]
    goes = _value("goes", TensorProto.BOOL, ())
    outer = helper.make_graph([loop, *going], "outer", [counter, flag, _value("v")], [goes, _value("w")])
    node = helper.make_node("Loop", ["count", "yes", "x"], ["y"], body=outer)
    constants = [numpy_helper.from_array(np.array(100), "count"), numpy_helper.from_array(np.array(True), "yes")]
    graph = helper.make_graph([node], "net", [_value("x")], [_value("y")], constants)
    with pytest.raises(UnsupportedOperatorError, match="more than 500 nodes once loops are unrolled"):
        load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_long_recurrent_networks_are_not_unrolled(model_of: ModelOf) -> None:
    weights = {"w": np.ones((1, 2, 3), np.float32), "r": np.ones((1, 2, 2), np.float32)}
    node = helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=2)
    assert len(load_model(model_of([node], {"x": (300_000, 1, 3)}, weights=weights)).nodes) < 10


@pytest.mark.parametrize("ending", ["json", "onnxjson", "onnxtext", "onnxtxt", "pbtxt", "prototxt", "textproto"])
@pytest.mark.parametrize("text", ["{", "", "{}", "nodes", "\xff"])
def test_files_with_the_endings_of_text_forms_are_refused(ending: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / f"model.{ending}"
    path.write_text(text)
    with pytest.raises(ModelFormatError, match="is not an ONNX model"):
        load_model(path)


@pytest.mark.filterwarnings("ignore:The onnxtxt format is experimental")
@pytest.mark.parametrize("form", ["textproto", "json", "onnxtxt"])
def test_a_text_form_with_the_ending_of_the_binary_one_gets_advice_that_works(
    form: str, model_of: ModelOf, tmp_path: Path
) -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": (2,)})
    path = tmp_path / "model.onnx"
    onnx.save(model, path, form)
    with pytest.raises(ModelFormatError, match=rf"onnx\.load\(\.\.\., '{form}'\), 'model\.onnx'\) writes the binary"):
        load_model(path)
    onnx.save(onnx.load(path, form), path)
    assert len(load_model(path).nodes) == 1


def test_a_binary_model_is_read_whatever_its_ending(model_of: ModelOf, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": (2,)}).SerializeToString())
    assert len(load_model(path).nodes) == 1


@pytest.mark.parametrize("name", [b"xxxx", b"yyyy", b"nnnn", b"aaaa"])
def test_names_that_are_not_utf_8_are_refused(name: bytes, model_of: ModelOf, tmp_path: Path) -> None:
    node = helper.make_node("LeakyRelu", ["xxxx"], ["yyyy"], name="nnnn", aaaa=0.5)
    data = model_of([node], {"xxxx": (2,)}, ["yyyy"]).SerializeToString()
    (tmp_path / "model.onnx").write_bytes(data.replace(name, b"\xff\xfe" + name[2:]))
    with pytest.raises(ModelFormatError, match="is not UTF-8"):
        load_model(tmp_path / "model.onnx")


def test_external_data_with_an_endless_name_is_refused(tmp_path: Path) -> None:
    model = _scan(2, 1)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w" * 5000)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError) as caught:
        load_model(tmp_path / "model.onnx")
    assert len(str(caught.value)) < 1000


def test_too_little_memory_is_not_the_fault_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setitem(importer.CONVERTERS, "Relu", full)
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    with pytest.raises(ModelError, match=r"'y' \(Relu\) does not fit into the free memory") as raised:
        load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    assert not isinstance(raised.value, UnsupportedOperatorError)
