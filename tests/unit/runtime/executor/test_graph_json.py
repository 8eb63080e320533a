"""The JSON form of graphs: what is read, what is refused, and what plan comes of it."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.graph_json import EntrySpec, GraphJson, Node, Source
from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.executor.graph_export import export_graph, storage_ids
from retune.compiler.runtime.executor.graph_import import NOP, import_graph
from retune.compiler.runtime.executor.plan import BufferKind, BufferSpec, Call, Plan
from retune.compiler.tvm.graph_executor import cpu, create
from tests.support.doubling_network import doubling_network
from tests.support.graphs import ARITHMETIC, chain, one_call, weighted

HAND_WRITTEN = """
{"nodes": [{"op": "null", "name": "x", "inputs": []},
           {"op": "tvm_op", "name": "add", "inputs": [[0, 0, 0]],
            "attrs": {"func_name": "myadd", "flatten_data": "1", "num_inputs": "1", "num_outputs": "1"}}],
 "arg_nodes": [0], "node_row_ptr": [0, 1, 2], "heads": [[1, 0, 0]],
 "attrs": {"shape": ["list_shape", [[4], [4]]], "dltype": ["list_str", ["float32", "float32"]],
           "storage_id": ["list_int", [0, 1]]}}
"""


def test_a_graph_json_written_by_hand_runs() -> None:
    module = create(HAND_WRITTEN, ARITHMETIC, cpu(0))
    x = np.random.default_rng(1).random(4, np.float32)
    module.run(x=x)
    np.testing.assert_array_equal(module.get_output(0), x + 1)


def test_reshapes_share_storage_and_compute_nothing() -> None:
    flat, square = (4,), (2, 2)
    shapes = (flat, flat, square, square, flat, flat)
    nodes = (
        Node("x"),
        Node("a", "myadd", (Source(0),)),
        Node("r", NOP, (Source(1),)),
        Node("b", "myadd", (Source(2),)),
        Node("c", "myadd", (Source(1),)),
        Node("s", NOP, (Source(3),)),
    )
    storage = (0, 1, 1, 2, 3, 2)
    entries = tuple(EntrySpec(shape, "float32", number) for shape, number in zip(shapes, storage, strict=True))
    graph = GraphJson(nodes, (0,), (Source(3), Source(4), Source(5)), entries)
    assert [call.label for call in import_graph(graph.dumps()).plan.calls] == ["a", "b", "c"]
    module = create(graph.dumps(), ARITHMETIC, cpu())
    x = np.arange(4, dtype="float32")
    module.run(x=x)
    np.testing.assert_array_equal(module.get_output(0), (x + 2).reshape(square))
    np.testing.assert_array_equal(module.get_output(1), x + 2)
    np.testing.assert_array_equal(module.get_output(2), x + 2)


def test_two_temporaries_suffice_for_a_chain() -> None:
    kind = BufferKind
    sizes = [10, 1, 1, *[10] * 6]
    kinds = [kind.INPUT, kind.INPUT, *[kind.INTERMEDIATE] * 7]
    plan = Plan(
        "chain",
        tuple(BufferSpec(f"v{i}", (sizes[i],), "float32", kinds[i], i) for i in range(len(sizes))),
        (Call("exp", (1, 2)), Call("add", (0, 2, 3)), *(Call("exp", (i, i + 1)) for i in range(3, 8))),
        (0, 1),
        (8,),
        4096,
    )
    ids = storage_ids(plan)
    assert len(set(ids)) == 4
    first = {number: place for place, number in reversed(list(enumerate(ids)))}
    assert [plan.buffers[first[number]].nbytes for number in sorted(first)] == [40, 4, 4, 40]


def test_two_storages_alternate() -> None:
    graph = chain("myadd myadd myadd myadd", (0, 1, 2, 1, 2))
    assert import_graph(graph.dumps()).plan.arena_bytes == 128
    module = create(graph.dumps(), ARITHMETIC, cpu())
    module.run(x=np.zeros(4, "float32"))
    np.testing.assert_array_equal(module.get_output(0), np.full(4, 4, "float32"))


def test_several_outputs_in_order_or_none() -> None:
    graph = chain("myadd myadd myadd myadd", (0, 1, 2, 3, 4))
    module = create(replace(graph, heads=tuple(Source(i) for i in range(1, 5))).dumps(), ARITHMETIC, cpu())
    x = np.arange(4, dtype="float32")
    module.run(x=x)
    assert module.get_num_outputs() == 4
    for index in range(4):
        np.testing.assert_array_equal(module.get_output(index), x + index + 1)
    silent = create(replace(graph, heads=()).dumps(), ARITHMETIC, cpu())
    silent.run(x=x)
    assert silent.get_num_outputs() == 0


def test_an_output_may_be_a_copy_or_an_input() -> None:
    graph = chain("__copy", (0, 1))
    graph = replace(graph, heads=(Source(1), Source(0)))
    module = create(graph.dumps(), {}, cpu())
    module.run(x=np.arange(4, dtype="float32"))
    for index in range(2):
        np.testing.assert_array_equal(module.get_output(index), np.arange(4, dtype="float32"))


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (chain("f f f", (0, 1, 1, 2)), "writes to storage 1, which it reads"),
        (chain("f f", (0, 1, 0)), "writes to storage 0"),
        (chain(NOP, (0, 1)), "must have one storage"),
        (chain(NOP, (0, 0), ((4,), (5,))), "must have one storage"),
        (replace(chain("f f f", (0, 1, 2, 1)), heads=(Source(1),)), "reads n0, whose memory was written over"),
        (replace(weighted(), arg_nodes=(0, 1)), "arg_nodes must list every null node once"),
        (replace(one_call(), heads=(Source(2),)), "no output 0 of a node 2"),
        (replace(one_call(), heads=(Source(1, 1),)), "no output 1 of a node 1"),
        (replace(one_call(), entries=one_call().entries[:1]), "1 entries described, the nodes have 2"),
        (replace(one_call(), nodes=(Node("x"), Node("n", "f", (Source(1),)))), "no output 0 of a node 1 before it"),
    ],
)
def test_a_graph_that_would_read_what_is_not_there_is_refused(graph: GraphJson, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        import_graph(graph.dumps())


def _change(path: str, value: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        *way, last = [int(word) if word.isdigit() else word for word in path.split(".")]
        for word in way:
            data = data[word]
        data[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_change("nodes", 3), "cannot be read: a value has the wrong type"),
        (_change("nodes.0.op", "conv"), "must be null or tvm_op"),
        (_change("nodes.1.attrs.num_inputs", "2"), "do not fit the node"),
        (_change("nodes.1.attrs.func_name", ""), "do not fit the node"),
        (_change("nodes.1.attrs", {}), "there is no 'num_outputs'"),
        (_change("node_row_ptr", [0, 1, 3]), "the nodes make"),
        (_change("attrs.shape.1.0", [-4]), "not an integer"),
        (_change("attrs.dltype.1.0", "float99"), "'float99' is no element type"),
        (_change("attrs.dltype.1.0", "f4,i8"), "is no element type"),
        (_change("attrs.dltype.1.0", "O"), "no element type of numbers"),
        (_change("attrs.storage_id.1", [0]), "a value has the wrong type or length"),
        (_change("attrs.device_index", ["list_int", [1, 4]]), "run on CPUs and CUDA's GPUs"),
        (_change("attrs.storage_scope", ["list_str", ["global", "global.texture"]]), "in their global memory"),
        (_change("heads", [[True, 0, 0]]), "not an integer"),
        (_change("heads", [[1]]), r"is not \[node, index, version\]"),
    ],
)
def test_a_malformed_text_is_refused(change: Callable[[Any], None], words: str) -> None:
    data = json.loads(HAND_WRITTEN)
    change(data)
    with pytest.raises(ArtifactError, match=words):
        import_graph(json.dumps(data))


def test_a_network_as_a_graph() -> None:
    text, params = export_graph(doubling_network())
    graph = import_graph(text)
    assert [node.function for node in graph.nodes] == ["", "", *["twofold"] * 4, NOP]
    assert list(params) == ["c"]
    assert [graph.plan.buffers[number].name for number in graph.plan.outputs] == ["out", "twice", "flat"]
    assert graph.plan.buffers[graph.plan.outputs[2]].shape == (1024,)
    assert graph.plan.arena_bytes == 4 * 4096  # two temporaries, two outputs


def test_memory_in_two_dimensions_is_refused() -> None:
    data = json.loads(one_call().dumps())
    data["attrs"]["storage_scope"] = ["list_str", ["global", "global.texture"]]
    with pytest.raises(ArtifactError, match="in their global memory, not on other"):
        import_graph(json.dumps(data))
    data["attrs"]["storage_scope"] = ["list_str", ["global", ""]]
    assert import_graph(json.dumps(data)) == import_graph(one_call().dumps())
