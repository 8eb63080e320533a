"""What cannot be imported is refused with one sentence that names all of it; what can be keeps its names."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.defs import get_all_schemas_with_history

import retune
from retune.compiler.core.errors import DynamicShapeError, ModelFormatError, UnknownValueError, UnsupportedOperatorError
from retune.compiler.frontend import zoo
from retune.compiler.frontend.importer import CONVERTERS, load_model
from retune.compiler.frontend.program import load_program
from retune.compiler.graph.evaluate import evaluate

ModelOf = Callable[..., onnx.ModelProto]


def relu(source: str = "x", result: str = "y") -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [result], name=f"make_{result}")


def test_every_unknown_operator_is_named(model_of: ModelOf) -> None:
    nodes = [
        helper.make_node("Multinomial", ["x"], ["a"], name="first"),
        helper.make_node("RandomUniformLike", ["x"], ["b"], name="second"),
        relu("a"),
    ]
    with pytest.raises(UnsupportedOperatorError) as caught:
        load_model(model_of(nodes, {"x": (3, 3)}))
    text = str(caught.value)
    both = "'first' (Multinomial), 'second' (RandomUniformLike)"
    assert text.endswith(f"cannot convert 2 nodes: {both}; docs/reference/onnx.md lists what is missing"), text
    assert "\n" not in text


def test_the_nearest_operators_are_named_and_not_all(model_of: ModelOf) -> None:
    nodes = [helper.make_node("Sigmiod", ["x"], [f"v{number}"], name=f"n{number}") for number in range(30)]
    model = model_of([relu("x", "a")], {"x": (3, 3)}, ["a"])
    model.graph.node.extend(nodes)
    with pytest.raises(UnsupportedOperatorError) as caught:
        load_model(model)
    text = str(caught.value)
    assert "'n9' (Sigmiod), and 20 more; nearest supported operators: Sigmoid; docs/reference/onnx.md lists" in text
    assert len(text) < 400


def test_the_documents_list_all_operators_that_are_missing() -> None:
    """An operator with neither a converter nor a definition as ONNX's function."""
    text = (Path(__file__).parents[3] / "docs/reference/onnx.md").read_text()
    newest, listed = re.findall(r"up to operator set (\d+), except ([^.]*)\.", text)[0]
    history: dict[str, list[Any]] = {}
    for schema in get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= int(newest):
            history.setdefault(schema.name, []).append(schema)
    missing = {
        name
        for name, schemas in history.items()
        if not any(each.has_function or each.has_context_dependent_function for each in schemas)
    } - {*CONVERTERS}
    made_of_missing = {"Bernoulli"}  # ONNX's function uses random numbers
    assert set(listed.replace("\n", " ").split(", ")) == missing | made_of_missing


def test_a_node_without_a_name_is_named_after_its_result(model_of: ModelOf) -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"1 node: 'y' \(Multinomial\)"):
        load_model(model_of([helper.make_node("Multinomial", ["x"], ["y"])], {"x": (3, 3)}))


def test_other_domains_are_refused(model_of: ModelOf) -> None:
    model = model_of([relu("x", "a")], {"x": (3, 3)}, ["a"])
    model.graph.node.append(helper.make_node("Relu", ["x"], ["y"], name="theirs", domain="com.example"))
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(UnsupportedOperatorError, match=r"'theirs' \(com.example.Relu\); .* not those of com.example;"):
        load_model(model)
    del model.graph.node[-1]  # a domain of which nothing is used, as tools that write models declare many
    assert len(load_model(model).nodes) == 1


def test_a_domain_that_is_no_text_is_refused(model_of: ModelOf) -> None:
    model = model_of([relu("x", "a")], {"x": (3, 3)}, ["a"])
    model.graph.node[0].domain = "theirs"
    with pytest.raises(ModelFormatError, match="is not UTF-8"):
        load_model(model.SerializeToString().replace(b"theirs", b"\xff\xfeeirs"))


def _wide_reshape(model_of: ModelOf) -> onnx.ModelProto:
    """A model whose shapes depend on what the input `n` holds."""
    nodes = [
        helper.make_node("Cast", ["n"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Tile", ["x", "whole"], ["y"], name="copies"),
    ]
    return model_of(nodes, {"x": (3,), "n": (1,)})


def test_an_input_that_shapes_depend_on_is_named(model_of: ModelOf) -> None:
    with pytest.raises(UnknownValueError, match=r"'copies' \(Tile\): the repeats .* on the input 'n'") as caught:
        load_model(_wide_reshape(model_of))
    assert caught.value.inputs == ("n",)


def test_an_input_can_be_fixed(model_of: ModelOf) -> None:
    graph = load_model(_wide_reshape(model_of), constants={"n": np.array([2], np.float32)})
    assert [value.name for value in graph.inputs] == ["x"]
    (found,) = evaluate(graph, {"x": np.arange(3, dtype=np.float32)})
    np.testing.assert_array_equal(found, [0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize(
    "value", [np.zeros((2, 3)), np.zeros(3, np.float32), np.zeros((2, 4), np.float32), [[0.0, 0.0, 0.0]]]
)
def test_a_value_that_is_not_what_the_model_says_is_refused(value: Any, model_of: ModelOf) -> None:
    with pytest.raises(ModelFormatError, match=r"value of input 'x' is .*; the model says float\['batch', 3\]"):
        load_model(model_of([relu()], {"x": ("batch", 3)}), constants={"x": value})


def test_a_value_for_an_unknown_input_is_refused(model_of: ModelOf) -> None:
    with pytest.raises(ModelFormatError, match="values are given for z"):
        load_model(model_of([relu()], {"x": (1, 3)}), constants={"z": np.zeros(3, np.float32)})


def test_operators_that_are_functions_are_expanded(model_of: ModelOf) -> None:
    node = helper.make_node("ReduceLogSumExp", ["x"], ["y"], keepdims=0)
    graph = load_model(model_of([node], {"x": (2, 3)}, opset=18))
    x = np.random.default_rng(0).standard_normal((2, 3), dtype=np.float32)
    (found,) = evaluate(graph, {"x": x})
    np.testing.assert_allclose(found, np.log(np.exp(x).sum()), rtol=1e-5)


def test_attributes_that_a_function_was_not_given_have_their_defaults(model_of: ModelOf) -> None:
    nodes = [helper.make_node("MeanVarianceNormalization", ["x"], ["m"]), helper.make_node("Add", ["m", "x"], ["y"])]
    model = model_of(nodes, {"x": (2, 3, 4, 4)})
    model.graph.output[0].type.CopyFrom(model.graph.input[0].type)
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4), dtype=np.float32)
    (found,) = evaluate(load_model(model), {"x": x})
    normal = (x - x.mean(axis=(0, 2, 3), keepdims=True)) / x.std(axis=(0, 2, 3), keepdims=True)
    np.testing.assert_allclose(found, normal + x, rtol=1e-3, atol=1e-4)


def test_attributes_that_do_not_convert_come_together(model_of: ModelOf) -> None:
    nodes = [
        helper.make_node("Pad", ["x", "p"], ["a"], name="mirror", mode="mirrored"),
        helper.make_node("MaxPool", ["x"], ["b"], name="solid", kernel_shape=[2, 2, 2, 2]),
        relu("a", "y"),
        relu("b", "z"),
    ]
    model = model_of(nodes, {"x": (1, 1, 4, 4, 4, 4)}, ["y", "z"], {"p": np.ones(12, np.int64)})
    with pytest.raises(UnsupportedOperatorError) as caught:
        load_model(model)
    assert "cannot convert 2 nodes: 'mirror' (Pad): mode 'mirrored'" in str(caught.value)
    assert "'solid' (MaxPool): only 1-D, 2-D and 3-D" in str(caught.value)


def test_training_mode_is_refused(model_of: ModelOf) -> None:
    weights = {"r": np.float32(0.5), "t": np.asarray(True)}
    node = helper.make_node("Dropout", ["x", "r", "t"], ["y"])
    with pytest.raises(UnsupportedOperatorError, match="training mode"):
        load_model(model_of([node], {"x": (3,)}, weights=weights))


def test_every_dynamic_dimension_is_named(model_of: ModelOf) -> None:
    model = model_of([helper.make_node("Add", ["x", "z"], ["y"])], {"x": ("batch", 3), "z": (1, "width")})
    with pytest.raises(DynamicShapeError) as caught:
        load_model(model)
    text = str(caught.value)
    assert "dimension 0 (batch) of input 'x', dimension 1 (width) of input 'z'" in text
    assert "dynamic=True" in text


def test_dynamic_dimensions_can_be_given(model_of: ModelOf) -> None:
    graph = load_model(model_of([relu()], {"x": ("batch", 3)}), shapes={"x": (4, 3)})
    assert graph.values["y"].shape == (4, 3)


def test_a_given_shape_fixes_the_symbols_of_other_inputs(model_of: ModelOf) -> None:
    model = model_of([helper.make_node("Add", ["x", "z"], ["y"])], {"x": ("batch", 3), "z": ("batch", "width")})
    with pytest.raises(DynamicShapeError, match=r"not static: dimension 1 \(width\) of input 'z'; give"):
        load_model(model, shapes={"x": (4, 3)})
    graph = load_model(model, shapes={"z": (4, 3)})
    assert graph.values["x"].shape == graph.values["y"].shape == (4, 3)


def test_a_shape_for_an_unknown_input_is_refused(model_of: ModelOf) -> None:
    with pytest.raises(ModelFormatError, match="for z, but the inputs are x"):
        load_model(model_of([relu()], {"x": (1, 3)}), shapes={"z": (4, 3)})


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"there is no file .*nothing\.onnx"):
        load_model(tmp_path / "nothing.onnx")


@pytest.mark.parametrize("content", [b"", b"no model", b"\x00" * 100, b"PK\x03\x04 a zip file"])
def test_a_file_that_is_not_onnx(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(content)
    for source in (path, content):
        with pytest.raises(ModelFormatError, match="is not an ONNX model") as caught:
            load_model(source)
        assert "\n" not in str(caught.value)


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="cannot be read"):
        load_model(tmp_path)


def test_an_invalid_model(model_of: ModelOf) -> None:
    model = model_of([relu()], {"x": (1, 3)})
    model.graph.node[0].input[0] = "undefined"
    with pytest.raises(
        ModelFormatError, match=r"is not valid ONNX.*'undefined' of node: .*is not output of any previous"
    ):
        load_model(model)


def test_a_large_model_is_checked_without_its_weights() -> None:
    model = zoo.build("mlp", widths=(512, 64, 8))
    assert max(len(tensor.raw_data) for tensor in model.graph.initializer) > 1 << 16
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("no_such_attribute", 1))
    with pytest.raises(ModelFormatError, match=r"is not valid ONNX.*no_such_attribute"):
        load_model(model)


def test_a_weight_that_is_cut_off_is_named() -> None:
    model = zoo.build("mlp", widths=(512, 64, 8))
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-100]
    with pytest.raises(UnsupportedOperatorError, match=f"{model.graph.initializer[0].name!r} cannot be read"):
        load_model(model)


def test_an_old_operator_set(model_of: ModelOf) -> None:
    slope = {"w": np.ones(3, np.float32)}
    graph = load_model(model_of([helper.make_node("PRelu", ["x", "w"], ["y"])], {"x": (1, 3)}, weights=slope, opset=9))
    assert graph.values["y"].shape == (1, 3)


def test_an_old_operator_set_that_cannot_be_converted(model_of: ModelOf) -> None:
    node = helper.make_node("Scan", ["x"], ["y"], body=helper.make_graph([], "body", [], []))
    with pytest.raises(ModelFormatError, match="operator set 7; the oldest supported is 11"):
        load_model(model_of([node], {"x": (1, 3)}, opset=7))


def test_a_shape_that_contradicts_the_model_is_refused(model_of: ModelOf) -> None:
    model = model_of([relu()], {"x": ("batch", 3)})
    for shape in ((4,), (4, 3, 1), (4, 5)):
        with pytest.raises(ModelFormatError, match=r"does not fit the input x: float32\[batch, 3\]"):
            load_model(model, shapes={"x": shape})


@pytest.mark.parametrize("dims", [("?", 3, "?"), (-1, 3, -1), ("", 3, "-1")])
def test_dimensions_that_name_nothing_are_each_their_own(
    dims: tuple[int | str, ...], model_of: ModelOf, tmp_path: Path
) -> None:
    """Some exporters declare all that they do not know as `?` or -1."""
    model = model_of([relu()], {"x": dims})
    assert load_model(model, shapes={"x": (4, 3, 5)}).values["y"].shape == (4, 3, 5)
    program = load_program(model)
    (dim, three, other) = program.functions["main"].params[0].dims or ()
    assert (dim, three, other) == (None, 3, None)
    x = np.random.default_rng(0).standard_normal((4, 3, 5), dtype=np.float32)
    np.testing.assert_array_equal(retune.compile(model, dynamic=True, store=tmp_path)(x), np.maximum(x, 0))


@pytest.mark.parametrize("shape", [(-1, 3), (1.5, 3), "43", 3, None, (4, "3")])
def test_a_shape_that_is_none_is_refused(shape: Any, model_of: ModelOf) -> None:
    with pytest.raises(ModelFormatError, match="the shape of input 'x' must be integers"):
        load_model(model_of([relu()], {"x": ("batch", 3)}), shapes={"x": shape})


def test_shapes_that_do_not_fit(model_of: ModelOf) -> None:
    model = model_of([relu()], {"x": (1, 3)})
    model.graph.node[0].CopyFrom(helper.make_node("MatMul", ["x", "x"], ["y"], name="product"))
    with pytest.raises(UnsupportedOperatorError, match=r"'product' \(MatMul\): its operands do not fit"):
        load_model(model)


def test_external_weights_are_read_and_missed(tmp_path: Path) -> None:
    model = zoo.build("mlp", widths=(8, 16, 4))
    path = tmp_path / "small.onnx"
    onnx.save_model(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    graph = load_model(path)
    assert graph.name == "small"
    assert graph.fingerprint() == load_model(zoo.build("mlp", widths=(8, 16, 4))).fingerprint()
    (tmp_path / "weights.bin").write_bytes((tmp_path / "weights.bin").read_bytes()[:-9])
    with pytest.raises(ModelFormatError, match=r"small\.onnx .* is damaged: External data"):
        load_model(path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelFormatError, match=r"small\.onnx"):
        load_model(path)


def test_weights_among_the_inputs_are_not_inputs(model_of: ModelOf) -> None:
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], {"x": (1, 3)}, weights={"w": np.ones(3, np.float32)})
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]))
    assert [value.name for value in load_model(model).inputs] == ["x"]


def test_local_functions_are_inlined() -> None:
    body = [helper.make_node("Relu", ["a"], ["r"]), helper.make_node("Neg", ["r"], ["b"])]
    function = helper.make_function("local", "Twist", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    graph = helper.make_graph(
        [helper.make_node("Twist", ["x"], ["y"], domain="local")],
        "case",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=8)
    imported = load_model(model)
    assert [node.op for node in imported.nodes] == ["relu", "neg"]
    (result,) = evaluate(imported, {"x": np.asarray([-1, 2], np.float32)})
    assert result.tolist() == [0, -2]


def _with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    del model.graph.output[:]
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 3)) for name in names)
    return model


def test_two_outputs_of_one_name_are_refused(model_of: ModelOf) -> None:
    with pytest.raises(ModelFormatError, match="the same name; put an Identity node"):
        load_model(_with_outputs(model_of([relu()], {"x": (1, 3)}), ["y", "y"]))


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_output_may_be_an_input(model_of: ModelOf, dynamic: bool, tmp_path: Path) -> None:
    model = _with_outputs(model_of([relu()], {"x": (1, 3)}), ["x", "y"])
    path = retune.compile(model, dynamic=dynamic, store=tmp_path, threads=1).save(tmp_path / "case.retune")
    network = retune.load(path)
    x = np.array([[-1, 0, 2]], np.float32)
    same, y = network(x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    assert not np.shares_memory(same, x)


@pytest.mark.parametrize("kind", ["float32", "int32"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_product_of_no_terms_is_zero(kind: str, dynamic: bool, tmp_path: Path) -> None:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    shapes: dict[str, list[Any]] = {"a": [2, 7, 0], "b": [0, 3], "y": [2, 7, 3]}
    a, b, y = (
        helper.make_tensor_value_info(key, element, [None] * len(value) if dynamic else value)
        for key, value in shapes.items()
    )
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "case", [a, b], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    for entry in (*graph.input, *graph.output):  # all dimensions are independent
        for place, dimension in enumerate(entry.type.tensor_type.shape.dim):
            dimension.dim_param = f"{entry.name}{place}" if dynamic else ""
    network = retune.compile(model, dynamic=dynamic, store=tmp_path, threads=1)
    found = np.asarray(network(np.zeros(shapes["a"], kind), np.zeros(shapes["b"], kind)))
    np.testing.assert_array_equal(found, np.zeros(shapes["y"], kind))


def test_an_operator_set_of_the_future_is_refused(model_of: ModelOf) -> None:
    model = model_of([relu()], {"x": (1, 3)})
    model.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    for load in (load_model, load_program):
        with pytest.raises(ModelFormatError, match=r"uses operator set \d+; the newest that onnx .* knows is \d+: "):
            load(model)


def _declaring(model: onnx.ModelProto, shape: Sequence[int | str], kind: int) -> onnx.ModelProto:
    """The model with another declaration of its output."""
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", kind, shape))
    return model


@pytest.mark.parametrize(("shape", "kind"), [([2, 3], TensorProto.DOUBLE), (["n", "m"], TensorProto.STRING)])
@pytest.mark.parametrize("load", [load_model, load_program])
def test_an_output_that_is_declared_of_another_type_is_named(
    load: Callable[[onnx.ModelProto], object], shape: Sequence[int | str], kind: int, model_of: ModelOf
) -> None:
    model = _declaring(model_of([relu()], {"x": (2, 3)}), shape, kind)
    with pytest.raises(ModelFormatError, match=r"the output y: .* is declared so, .* compute y: float32\[2, 3\]"):
        load(model)


@pytest.mark.parametrize("shape", [[2, 4], [2, 3, 1], [], ["n", 4]])
def test_an_output_that_is_declared_in_another_shape_is_warned_of(
    shape: Sequence[int | str], model_of: ModelOf, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Other runtimes run such files, too."""
    model = _declaring(model_of([relu()], {"x": (2, 3)}), shape, TensorProto.FLOAT)
    assert load_model(model).values["y"].shape == (2, 3)
    load_program(model)
    assert caplog.text.count("is declared so, but the nodes compute y: float32[2, 3]") == 2
    x = np.ones((2, 3), np.float32)
    for dynamic in (False, True):
        np.testing.assert_array_equal(retune.compile(model, dynamic=dynamic, store=tmp_path)(x), x)


@pytest.mark.parametrize("shape", [["n", 3], ["n", "n"]])
def test_what_is_declared_of_an_output_may_be_less_than_is_known(shape: Sequence[int | str], model_of: ModelOf) -> None:
    model = _declaring(model_of([relu()], {"x": (2, 3)}), shape, TensorProto.FLOAT)
    for load in (load_model, load_program):
        load(model)


def test_names_and_order_of_inputs_and_outputs_stay(model_of: ModelOf) -> None:
    nodes = [relu("b", "second"), relu("a", "first")]
    graph = load_model(model_of(nodes, {"b": (2,), "a": (3,)}, ["first", "second"]))
    shapes: list[Any] = [(value.name, value.shape) for value in (*graph.inputs, *graph.output_values())]
    assert shapes == [("b", (2,)), ("a", (3,)), ("first", (3,)), ("second", (2,))]


def test_an_omitted_result_is_no_operand_of_later_nodes(
    model_of: ModelOf, agrees_with_onnxruntime: Callable[[onnx.ModelProto], object]
) -> None:
    """The first result of the LSTM is omitted, as is the lower bound of the Clip."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((1, 8, 3)), "r": rng.standard_normal((1, 8, 2)), "high": np.asarray(0.1)}
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=2),
        helper.make_node("Clip", ["h", "", "high"], ["y"]),
    ]
    floats = {name: array.astype("float32") for name, array in weights.items()}
    agrees_with_onnxruntime(model_of(nodes, {"x": (4, 1, 3)}, ["y"], floats))


@pytest.mark.parametrize("dynamic", [False, True])
def test_nodes_in_any_order_are_sorted(dynamic: bool, model_of: ModelOf) -> None:
    """The branches read a result of a node that comes later, and their own nodes are not in order either."""
    negative = [helper.make_node("Neg", ["r"], ["n"]), relu("late", "r")]
    positive = [relu("late", "p")]
    branches = {
        name: helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(nodes[0].output[0], 1, [2])])
        for name, nodes in (("then_branch", negative), ("else_branch", positive))
    }
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["is_positive"]),
        helper.make_node("Abs", ["x"], ["late"]),
        helper.make_node("If", ["is_positive"], ["y"], **branches),
    ]
    model = model_of(nodes, {"x": (2,)}, ["y"], {"zero": np.zeros((), "float32")})
    nodes = [model.graph.node[3], *model.graph.node[:3]]
    shuffled = onnx.ModelProto()
    shuffled.CopyFrom(model)
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(nodes)
    network = retune.compile(shuffled, dynamic=dynamic)
    np.testing.assert_array_equal(network(np.array([1, -3], "float32")), [1, 3])
    np.testing.assert_array_equal(network(np.array([4, -3], "float32")), [-4, -3])
    assert shuffled.graph.node[0].op_type == "If"


def test_a_cycle_is_refused(model_of: ModelOf) -> None:
    model = model_of([relu("x", "a"), relu("a", "y")], {"x": (2,)})
    model.graph.node[0].input[0] = "y"
    with pytest.raises(ModelFormatError, match="sorted"):
        load_model(model)
