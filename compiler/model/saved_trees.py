"""Verifies boosted trees that were read from JSON.

Accepted trees are safe to load. The library follows node and feature numbers unchecked, so every node must be reached
exactly once and no number may point outside.
"""

import json
import math
from collections.abc import Sequence

from retune.compiler.core.json_reader import JsonObject

_LEAF = -1
"""The child that XGBoost writes for a leaf."""
_PER_NODE = (
    "base_weights", "default_left", "left_children", "loss_changes", "parents", "right_children", "split_conditions",
    "split_indices", "split_type", "sum_hessian",
)  # fmt: skip
_INTEGERS = frozenset(("default_left", "left_children", "parents", "right_children", "split_indices", "split_type"))
_EMPTY = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
_TREE = {*_PER_NODE, *_EMPTY, "id", "tree_param"}
_INT = 2**31
"""Node numbers are int32 in XGBoost, and the root's parent is the largest of them."""
_LARGEST = 3.5e38
"""No float32 is larger."""


def check_trees(text: bytes, features: int) -> None:
    """Check that `text` holds trees over `features` features, with one output each, and nothing else.

    Raises: ValueError, KeyError, TypeError or RecursionError.
    """
    data = json.loads(text)
    _check_keys(data, {"learner", "version"})
    _check_integers(data["version"], 0, 1000)
    learner = data["learner"]
    _check_keys(
        learner,
        {"attributes", "feature_names", "feature_types", "gradient_booster", "learner_model_param", "objective"},
    )
    _check_empty(learner, "attributes", "feature_names", "feature_types")
    _check_settings(learner, features)
    booster = learner["gradient_booster"]
    _check_keys(booster, {"model", "name"})
    if booster["name"] != "gbtree":
        raise ValueError(f"a booster of the kind {booster['name']!r}")
    _check_forest(booster["model"], features)


def _check_settings(learner: JsonObject, features: int) -> None:
    expected = {"boost_from_average": "0", "num_class": "0", "num_feature": str(features), "num_target": "1"}
    parameters = dict(learner["learner_model_param"])
    base = parameters.pop("base_score")
    if not isinstance(base, str) or not math.isfinite(float(base.strip("[]"))) or len(base) > 40:
        raise ValueError(f"a base score of {base!r}")
    if parameters != expected:
        raise ValueError(f"parameters {parameters}, not {expected}")
    if learner["objective"] != {"name": "reg:squarederror", "reg_loss_param": {"scale_pos_weight": "1"}}:
        raise ValueError("another objective")


def _check_forest(model: JsonObject, features: int) -> None:
    _check_keys(model, {"cats", "gbtree_model_param", "iteration_indptr", "tree_info", "trees"}, may_lack={"cats"})
    if "cats" in model:
        _check_keys(model["cats"], {"enc", "feature_segments", "sorted_idx"})
        _check_empty(model["cats"], "enc", "feature_segments", "sorted_idx")
    trees = model["trees"]
    if not isinstance(trees, list):
        raise TypeError("no list of trees")
    count = len(trees)
    if model["gbtree_model_param"] != {"num_parallel_tree": "1", "num_trees": str(count)}:
        raise ValueError(f"{count} trees, but parameters {model['gbtree_model_param']}")
    if model["tree_info"] != [0] * count or model["iteration_indptr"] != list(range(count + 1)):
        raise ValueError("trees of several outputs, or several to a round")
    for number, tree in enumerate(trees):
        _check_keys(tree, _TREE)
        _check_empty(tree, *_EMPTY)
        if tree["id"] is True or tree["id"] != number:
            raise ValueError(f"tree {number} is called {tree['id']!r}")
        _check_tree(tree, features)


def _check_tree(tree: JsonObject, features: int) -> None:
    lefts = tree["left_children"]
    nodes = len(lefts)
    expected = {"num_feature": str(features), "num_nodes": str(nodes), "size_leaf_vector": "1"}
    parameters = dict(tree["tree_param"])
    if parameters.pop("num_deleted") != "0" or parameters != expected or not nodes:
        raise ValueError(f"a tree of {nodes} nodes with parameters {tree['tree_param']}")
    for name in _PER_NODE:
        values = tree[name]
        if not isinstance(values, list) or len(values) != nodes:
            raise ValueError(f"{name} is not of {nodes} nodes")
        if name in _INTEGERS:
            _check_integers(values, -1, _INT)
        elif not all(isinstance(value, int | float) and abs(value) < _LARGEST for value in values):
            raise ValueError(f"{name} has what is no number")
    if any(tree["split_type"]) or not set(tree["default_left"]) <= {0, 1}:
        raise ValueError("splits of another type")
    if not all(0 <= feature < features for feature in tree["split_indices"]):
        raise ValueError("a split by a feature that there is not")
    _check_reachable(lefts, tree["right_children"], tree["parents"])


def _check_reachable(lefts: Sequence[int], rights: Sequence[int], parents: Sequence[int]) -> None:
    """Check that every node is reached from the first in one way, and has the right parent."""
    seen = [False] * len(lefts)
    # Depth-first search with an explicit stack, because a malicious file may nest deeper than Python's recursion limit.
    # Reaching each node exactly once excludes cycles, on which the library's traversal would not end.
    stack = [0]
    while stack:
        node = stack.pop()
        if seen[node]:
            raise ValueError(f"node {node} of a tree is reached twice")
        seen[node] = True
        children = (lefts[node], rights[node])
        if children == (_LEAF, _LEAF):
            continue
        if not all(0 < child < len(lefts) and parents[child] == node for child in children):
            raise ValueError(f"node {node} of a tree has the children {children}")
        stack += children
    if not all(seen) or parents[0] != _INT - 1:
        raise ValueError("a tree with nodes that are not reached")


def _check_keys(data: object, allowed: set[str], may_lack: frozenset[str] | set[str] = frozenset()) -> None:
    if not isinstance(data, dict) or not allowed - may_lack <= set(data) <= allowed:
        raise ValueError(f"other fields than {', '.join(sorted(allowed))}")


def _check_empty(holder: JsonObject, *names: str) -> None:
    for name in names:
        if holder[name] not in ([], {}):
            raise ValueError(f"{name} is not empty")


def _check_integers(values: object, least: int, end: int) -> None:
    if not isinstance(values, list) or not all(type(value) is int and least <= value < end for value in values):
        raise ValueError(f"not all are integers from {least} to {end - 1}")
