"""The builder folds constants, drops what is dead, and keeps the names of inputs and outputs."""

import numpy as np
import pytest

from retune.compiler.core.errors import DefinitionError
from retune.compiler.graph.builder import GraphBuilder, rewrite
from retune.compiler.graph.ir import Node, Value
from retune.compiler.graph.verify import verify


def builder_of(*shape: int) -> GraphBuilder:
    return GraphBuilder("g", [Value("x", shape)])


def test_constants_fold_and_dead_nodes_go() -> None:
    build = builder_of(2)
    two = build.emit("add", [build.scalar(1, "float32"), build.scalar(1, "float32")])
    build.emit("exp", ["x"])
    graph = build.finish({"y": build.emit("mul", ["x", two])})
    verify(graph)
    assert [node.op for node in graph.nodes] == ["mul"]
    assert [array.item() for array in graph.constants.values()] == [2.0]


def test_constants_are_read_only() -> None:
    build = builder_of(2)
    array = np.ones(2, np.float32)
    graph = build.finish({"y": build.emit("add", ["x", build.constant(array, "w")])})
    with pytest.raises(ValueError, match="read-only"):
        graph.constants["w"][0] = 5
    array[0] = 3  # read-only through the graph alone


def test_outputs_take_their_names_from_others() -> None:
    build = builder_of(2)
    first = build.emit("relu", ["x"], output="y")
    second = build.emit("exp", [first], output="z")
    graph = build.finish({"y": second, "z": first, "copy": second, "same": "x"})
    verify(graph)
    assert graph.outputs == ("y", "z", "copy", "same")
    text = [str(node) for node in graph.nodes]
    assert text == ["z = relu(x)", "y = exp(z)", "copy = identity(y)", "same = identity(x)"]


def test_numbers_of_dead_names_are_given_back() -> None:
    build = builder_of(2)
    for _ in range(3):
        last = build.emit("relu", ["x"], output="a")
    assert last == "a_2"
    graph = build.finish({"y": build.emit("exp", [last])})
    assert [node.output for node in graph.nodes] == ["a", "y"]


def test_one_value_is_several_outputs_one_of_which_has_its_name() -> None:
    build = builder_of(2)
    value = build.emit("tanh", ["x"], output="y")
    graph = rewrite(build.finish({"first": value, "y": value, "x": "x"}), lambda *_: None)
    verify(graph)
    assert graph.outputs == ("first", "y", "x")


def test_an_output_cannot_be_called_like_an_input() -> None:
    build = builder_of(2)
    with pytest.raises(DefinitionError, match="name of the input x"):
        build.finish({"x": build.emit("relu", ["x"])})


def test_a_misfit_is_refused_when_emitted() -> None:
    with pytest.raises(DefinitionError, match="no permutation"):
        builder_of(2, 3).emit("transpose", ["x"], {"perm": (0,)})


def test_rewrite_replaces_what_convert_reiterations() -> None:
    build = builder_of(2)
    graph = build.finish({"y": build.emit("neg", [build.emit("relu", ["x"])])})

    def convert(builder: GraphBuilder, node: Node) -> str | None:
        return builder.emit("abs", node.inputs) if node.op == "relu" else None

    changed = rewrite(graph, convert)
    verify(changed)
    assert [node.op for node in changed.nodes] == ["abs", "neg"]
    assert [node.op for node in graph.nodes] == ["relu", "neg"]
