"""A graph verifies its structure, prints the same text every time, and is fingerprinted by content."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from retune.compiler.core.errors import DefinitionError
from retune.compiler.graph.ir import Graph, Node, Value


def small(weight: float = 2.0, prefix: str = "") -> Graph:
    x, w, y = Value(f"{prefix}x", (1, 2)), Value(f"{prefix}w", (2, 3)), Value(f"{prefix}y", (1, 3))
    return Graph(
        name="small",
        inputs=(x,),
        outputs=(y.name,),
        nodes=(Node("dense", (x.name, w.name), (y.name,), name="product"),),
        constants={w.name: np.full((2, 3), weight, np.float32)},
        values={value.name: value for value in (x, w, y)},
    )


def test_graph_prints_one_line_per_node_with_its_type() -> None:
    assert str(small()).splitlines() == [
        "graph small(x: float32[1, 2])",
        "  const w: float32[2, 3]",
        "  y = dense(x, w) : float32[1, 3]",
        "  return y",
    ]
    node = Node("softmax", ("a",), ("b",), {"axis": 1})
    assert str(node) == "b = softmax(a) {axis=1}"


def test_fingerprint_sees_content_and_not_names() -> None:
    assert small().fingerprint() == small(prefix="other_").fingerprint()
    assert small().fingerprint() != small(weight=3.0).fingerprint()
    assert replace(small(), name="renamed").fingerprint() == small().fingerprint()


def test_graph_survives_pickling() -> None:
    copy: Graph = pickle.loads(pickle.dumps(small()))
    copy.verify()
    assert copy.fingerprint() == small().fingerprint()


def test_readers_and_writers() -> None:
    graph = small()
    assert graph.producers() == {"y": graph.nodes[0]}
    assert graph.consumers() == {"x": graph.nodes, "w": graph.nodes, "y": ()}
    assert graph.output_values() == (Value("y", (1, 3)),)
    assert graph.values["w"].size == 6
    assert graph.values["w"].nbytes == 24


def broken() -> list[tuple[Graph, str]]:
    graph = small()
    node = graph.nodes[0]
    return [
        (replace(graph, nodes=(replace(node, inputs=("x", "z")),)), "reads z before it is defined"),
        (replace(graph, nodes=(node, node)), "defines y a second time"),
        (replace(graph, outputs=("z",)), "output z is not computed"),
        (replace(graph, outputs=("y", "y")), "an output twice"),
        (replace(graph, constants={"w": np.zeros((2, 2), np.float32)}), "constant w is float32"),
        (replace(graph, inputs=(Value("x", (9,)),)), "not described alike"),
        (replace(graph, inputs=graph.inputs * 2), "two inputs have the same name"),
        (replace(graph, values={**graph.values, "spare": Value("spare", ())}), "never defined: spare"),
        (replace(graph, values={n: v for n, v in graph.values.items() if n != "y"}), "has no description"),
    ]


@pytest.mark.parametrize(("graph", "message"), broken(), ids=[message for _, message in broken()])
def test_verify_names_the_fault(graph: Graph, message: str) -> None:
    small().verify()
    with pytest.raises(DefinitionError, match=message):
        graph.verify()


def test_attributes_are_read_with_their_type() -> None:
    node = Node("op", (), ("y",), {"n": 2, "f": 0.5, "t": "NHWC", "b": True, "p": (1, 2)})
    assert (node.integer("n"), node.number("f"), node.text("t")) == (2, 0.5, "NHWC")
    assert (node.flag("b"), node.ints("p")) == (True, (1, 2))
    for read in (node.integer, node.number, node.text, node.flag, node.ints):
        with pytest.raises(DefinitionError, match="'missing'"):
            read("missing")
