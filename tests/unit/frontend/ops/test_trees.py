"""Trees of ONNX's domain of classical models compute what ONNX Runtime computes, for random forests and rows."""

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from retune.compiler.core.errors import UnsupportedOperatorError
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.pipeline import optimize
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.tune.onnx_runtime import OnnxRuntime

Array = NDArray[Any]
MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
_FEATURES, _ROWS = 5, 21


def _rows(dtype: str) -> Array:
    """Rows of which many features equal a split of a tree; some are no numbers."""
    random = np.random.default_rng(7)
    x = random.integers(-3, 4, (_ROWS, _FEATURES)) / 2
    if dtype.startswith("float"):
        x[random.random(x.shape) < 0.1] = np.nan
    return x.astype(dtype)


def _draw_trees(random: np.random.Generator, trees: int, modes: tuple[str, ...], targets: int) -> dict[str, list[Any]]:
    """Trees of several depths, as the older operators list them; some are a leaf alone."""
    keys = (
        "treeids",
        "nodeids",
        "featureids",
        "values",
        "modes",
        "truenodeids",
        "falsenodeids",
        "missing_value_tracks_true",
    )
    nodes: dict[str, list[Any]] = {f"nodes_{key}": [] for key in keys}
    leaves: dict[str, list[Any]] = {key: [] for key in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(trees):
        depth, count = random.integers(0, 6), 0
        waiting = [(0, 0)]
        while waiting:
            number, level = waiting.pop(0)
            is_leaf = level >= depth or (level > 0 and random.random() < 0.2)
            first, second = (0, 0) if is_leaf else (count + 1, count + 2)
            count += 0 if is_leaf else 2
            waiting += [] if is_leaf else [(first, level + 1), (second, level + 1)]
            mode = "LEAF" if is_leaf else f"BRANCH_{random.choice(modes)}"
            values = (
                tree,
                number,
                int(random.integers(_FEATURES)),
                float(random.integers(-3, 4) / 2),
                mode,
                first,
                second,
                int(random.integers(2)),
            )
            for key, value in zip(keys, values, strict=True):
                nodes[f"nodes_{key}"].append(value)
            if is_leaf:
                for key, value in zip(leaves, (tree, number, tree % targets, float(random.normal())), strict=True):
                    leaves[key].append(value)
    return nodes | {f"leaf_{key}": values for key, values in leaves.items()}


def _shape(kind: int) -> list[str]:
    """Labels have an axis, scores two."""
    return ["rows"] if kind == TensorProto.INT64 else ["rows", "columns"]


def _model(operator: str, x: Array, kinds: list[int], **attributes: Any) -> onnx.ModelProto:
    entry = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    names = [f"y{number}" for number in range(len(kinds))]
    outputs = [helper.make_tensor_value_info(name, kind, _shape(kind)) for name, kind in zip(names, kinds, strict=True)]
    node = helper.make_node(operator, ["x"], names, domain="ai.onnx.ml", **attributes)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 5 if operator == "TreeEnsemble" else 3)]
    graph = helper.make_graph([node], "trees", [entry], outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _check(model: onnx.ModelProto, x: Array, *, columns_decide: bool = False) -> Graph:
    """Compare with ONNX Runtime; of labels that `columns_decide` with the largest score, since for two classes with a
    score each ONNX Runtime returns 1 or 0, whatever the labels are.
    """
    expected = OnnxRuntime(model.SerializeToString(), 1).run({"x": x})
    graph = load_model(model)
    if len(expected) == 2 and columns_decide:
        labels = np.array(helper.get_node_attr_value(model.graph.node[0], "classlabels_int64s"))
        expected[0] = labels[np.argmax(expected[1], axis=1)]
    for given, right in zip(evaluate(graph, {"x": x}), expected, strict=True):
        assert given.dtype == right.dtype
        np.testing.assert_allclose(given, np.asarray(right), rtol=1e-5, atol=1e-5)
    return graph


def _listed(trees: dict[str, list[Any]], kind: str) -> dict[str, Any]:
    leaves = {f"{kind}_{key}": trees[f"leaf_{key}"] for key in ("treeids", "nodeids", "ids", "weights")}
    return {key: values for key, values in trees.items() if key.startswith("nodes_")} | leaves


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
def test_regressors_match_onnxruntime(dtype: str, aggregate: str, targets: int) -> None:
    random, x = np.random.default_rng(targets), _rows(dtype)
    trees = _draw_trees(random, 12, MODES, targets)
    _check(
        _model(
            "TreeEnsembleRegressor",
            x,
            [TensorProto.FLOAT],
            n_targets=targets,
            aggregate_function=aggregate,
            base_values=[0.5] * targets,
            **_listed(trees, "target"),
        ),
        x,
    )


@pytest.mark.parametrize("mode", MODES)
def test_every_test_of_a_node_treats_equal_and_missing_features_as_onnxruntime(mode: str) -> None:
    x = _rows("float32")
    trees = _draw_trees(np.random.default_rng(3), 40, (mode,), 1)
    _check(_model("TreeEnsembleRegressor", x, [TensorProto.FLOAT], n_targets=1, **_listed(trees, "target")), x)


@pytest.mark.parametrize(("classes", "ids"), [(3, 3), (2, 2), (2, 1)])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("sign", [1, -1])
def test_classifiers_match_onnxruntime(classes: int, ids: int, transform: str, sign: int) -> None:
    x = _rows("float32" if sign > 0 else "int64")
    trees = _draw_trees(np.random.default_rng(5), 9, ("LEQ",), ids)
    if sign > 0:
        trees["leaf_weights"] = [abs(weight) / 9 for weight in trees["leaf_weights"]]
    labels = [7, -2, 4][:classes]
    model = _model(
        "TreeEnsembleClassifier",
        x,
        [TensorProto.INT64, TensorProto.FLOAT],
        post_transform=transform,
        classlabels_int64s=labels,
        **_listed(trees, "class"),
    )
    _check(model, x, columns_decide=ids == 2)


def _ensemble(trees: dict[str, list[Any]], dtype: str) -> dict[str, Any]:
    """The attributes of TreeEnsemble, which numbers inner nodes and leaves apart."""
    pairs = list(zip(trees["nodes_treeids"], trees["nodes_nodeids"], strict=True))
    leaf = dict(zip(zip(trees["leaf_treeids"], trees["leaf_nodeids"], strict=True), range(len(pairs)), strict=False))
    inner = {pair: number for number, pair in enumerate(pair for pair in pairs if pair not in leaf)}
    rows = [number for number, pair in enumerate(pairs) if pair in inner]

    def ends(way: str) -> tuple[list[int], list[int]]:
        targets = [(trees["nodes_treeids"][row], trees[f"nodes_{way}nodeids"][row]) for row in rows]
        return [inner.get(pair, leaf.get(pair, -1)) for pair in targets], [int(pair in leaf) for pair in targets]

    tensor = numpy_helper.from_array
    (yes, yes_leaf), (no, no_leaf) = ends("true"), ends("false")
    return {
        "nodes_modes": tensor(np.array([MODES.index(trees["nodes_modes"][row][7:]) for row in rows], np.uint8)),
        "nodes_splits": tensor(np.array([trees["nodes_values"][row] for row in rows], dtype)),
        "nodes_featureids": [trees["nodes_featureids"][row] for row in rows],
        "nodes_missing_value_tracks_true": [trees["nodes_missing_value_tracks_true"][row] for row in rows],
        "nodes_truenodeids": yes,
        "nodes_trueleafs": yes_leaf,
        "nodes_falsenodeids": no,
        "nodes_falseleafs": no_leaf,
        "tree_roots": [inner[pair] for pair in inner if pair[1] == 0],
        "leaf_targetids": trees["leaf_ids"],
        "leaf_weights": tensor(np.array(trees["leaf_weights"], dtype)),
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_of_many_trees_match_onnxruntime(dtype: str) -> None:
    x, random = _rows(dtype), np.random.default_rng(2)
    trees = _draw_trees(random, 150, ("LEQ", "GT"), 1)
    alone = {tree for tree, mode in zip(trees["nodes_treeids"], trees["nodes_modes"], strict=True) if mode == "LEAF"}
    branching = {
        tree for tree, mode in zip(trees["nodes_treeids"], trees["nodes_modes"], strict=True) if mode != "LEAF"
    }
    for kind in ("nodes", "leaf"):  # TreeEnsemble has no tree of a leaf alone
        kept = [tree in branching for tree in trees[f"{kind}_treeids"]]
        for key in (key for key in trees if key.startswith(kind)):
            trees[key] = [value for value, keep in zip(trees[key], kept, strict=True) if keep]
    assert alone - branching
    model = _model(
        "TreeEnsemble",
        x,
        [int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))],
        n_targets=1,
        **_ensemble(trees, dtype),
    )
    graph = _check(model, x)
    assert 1 < sum(node.op == "tree_leaves" for node in graph.nodes) <= 4
    executor = GraphExecutor(compile_graph(optimize(graph), Target.host()))
    executor.set_input("x", x)
    executor.run()
    (expected,) = OnnxRuntime(model.SerializeToString(), 1).run({"x": x})
    np.testing.assert_allclose(np.asarray(executor.get_output(0)), np.asarray(expected), rtol=1e-5, atol=1e-5)


def test_scaling_matches_onnxruntime() -> None:
    for dtype in ("float32", "int64"):
        x = np.arange(12).reshape(4, 3).astype(dtype)
        _check(_model("Scaler", x, [TensorProto.FLOAT], offset=[1.0, 2.0, 3.0], scale=[0.5, 0.25, 2.0]), x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes_truenodeids": [0, 0, 0]}, "below itself"),
        ({"nodes_truenodeids": [9, 0, 0]}, "not there"),
        ({"nodes_modes": ["BRANCH_MEMBER", "LEAF", "LEAF"]}, "BRANCH_MEMBER"),
        ({"post_transform": "PROBIT"}, "PROBIT"),
    ],
)
def test_trees_that_are_none_are_refused(change: dict[str, object], message: str) -> None:
    stump: dict[str, object] = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "n_targets": 1,
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
    }
    x = _rows("float32")
    _check(_model("TreeEnsembleRegressor", x, [TensorProto.FLOAT], **stump), x)
    with pytest.raises(UnsupportedOperatorError, match=message):
        load_model(_model("TreeEnsembleRegressor", x, [TensorProto.FLOAT], **(stump | change)))
