"""Converters of `ai.onnx.ml`, ONNX's domain of classical models: ensembles of decision trees, and scaling.

The trees of an ensemble are walked side by side, a level at a time, for every row; a leaf is its own child.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.frontend.ops.attributes import MOST_ITERATIONS, OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter
from retune.compiler.frontend.ops.standard import Composition, compose
from retune.compiler.graph.ir import Array

DOMAIN = "ai.onnx.ml"
_LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER, _LEAF = range(8)
_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER", "LEAF")
"""Tests of a node, in the order of TreeEnsemble's numbers; older operators write BRANCH_LEQ and so on."""
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_JOINS = {
    "AVERAGE": ("ReduceSum", 0.0),
    "SUM": ("ReduceSum", 0.0),
    "MIN": ("ReduceMin", np.inf),
    "MAX": ("ReduceMax", -np.inf),
}
"""The reduction over trees, and the weight of a target that a leaf does not have."""
_GROUPS, _FEWEST_TREES = 4, 32
"""Most groups of trees that are walked to their own depth, which is a third less work than to the depth of the deepest,
and trees of a group: two vectors."""


@dataclass(slots=True)
class _Forest:
    """Nodes of all trees. A row goes on to `yes` if its feature passes the test of `modes` with `splits`, else to `no`;
    if the feature is NaN, to `yes` where `tracks`. `weights` is (nodes, targets), `roots` has a node for each tree.
    """

    modes: Array
    features: Array
    splits: Array
    yes: Array
    no: Array
    tracks: Array
    roots: Array
    weights: Array

    def check(self, node: OnnxNode) -> None:
        """Raises: UnsupportedOperatorError for nodes that form no trees, and for tests of sets."""
        ends, tables = np.concatenate([self.roots, self.yes, self.no]), (self.features, self.splits, self.yes, self.no)
        if any(len(table) != len(self.modes) for table in tables) or not len(self.roots):
            raise node.unsupported("needs a tree, and a feature, a number and two children of each node")
        if ends.min() < 0 or ends.max() >= len(self.modes) or self.features.min() < 0:
            raise node.unsupported("a node has a child or a feature that is not there")
        if np.any(self.modes == _MEMBER):
            raise node.unsupported("a node tests for a set of numbers (BRANCH_MEMBER)")

    def compare(self) -> tuple[Array, Array, Array]:
        """Tests, splits and children of nodes that all ask for `x <= split`, as the operator `tree_leaves` reads them.
        Nodes that ask for equality become two, of which the second has a new number.
        """
        below = np.nextafter(self.splits, -np.inf, dtype=self.splits.dtype)
        pairs = np.flatnonzero((self.modes == _EQ) | (self.modes == _NEQ))
        # x >= s and x > s are the opposites of x < s and x <= s, x != s is that of x == s.
        opposite = np.isin(self.modes, (_GTE, _GT, _NEQ))
        children = np.stack([np.where(opposite, *ways) for ways in ((self.no, self.yes), (self.yes, self.no))], axis=1)
        # x < s: x <= the number before s. x == s: x <= s, and not x <= the number before s.
        splits = np.where(np.isin(self.modes, (_LT, _GTE)), below, self.splits)
        second = children[pairs, ::-1]
        children[pairs, 0] = len(self.modes) + np.arange(len(pairs))
        leaves = np.flatnonzero(self.modes == _LEAF)
        children[leaves] = leaves[:, None]
        # As NaN != s holds, no NaN takes the second of the two nodes of x != s.
        is_first = (opposite ^ (self.tracks != 0)) & (self.modes != _NEQ)
        tests = np.concatenate([2 * self.features + is_first, 2 * self.features[pairs]])
        return tests, np.concatenate([splits, below[pairs]]), np.concatenate([children, second])

    def walk(self, write: Composition, x: str) -> str:
        """The leaf of every row in every tree, (rows, trees); trees of similar depth are walked together."""
        tests, splits, children = self.compare()
        tables = [write.builder.constant(table) for table in (tests.astype(np.int32), splits, _flat(children))]
        is_leaf, depth = np.all(children == np.arange(len(tests))[:, None], axis=1), np.zeros(len(tests), np.int64)
        for _ in range(MOST_ITERATIONS):
            last, depth = depth, np.where(is_leaf, 0, 1 + depth[children].max(axis=1))
            if np.array_equal(last, depth):
                break
        else:
            raise write.node.unsupported("a node is below itself")
        roots = self.roots[np.argsort(depth[self.roots], kind="stable")]
        size = max(_FEWEST_TREES, -(-len(roots) // _GROUPS // _FEWEST_TREES) * _FEWEST_TREES)
        places = []
        for group in (roots[start : start + size] for start in range(0, len(roots), size)):
            levels = max(1, depth[group].max().item())
            places.append(write("tree_leaves", x, *tables, write.builder.constant(_flat(group)), levels=levels))
        return places[0] if len(places) == 1 else write("concat", *places, axis=1)

    def score(self, write: Composition, x: str, join: str) -> str:
        """The weights of all trees joined, and the bases added: (rows, targets)."""
        self.check(write.node)
        places = self.walk(write, x)
        weights = write.builder.constant(self.weights if self.weights.shape[1] > 1 else self.weights[:, 0])
        total = write(_JOINS[join][0], write("gather", weights, places, axis=0), (1,), keepdims=0)
        total = write("div", total, len(self.roots)) if join == "AVERAGE" else total
        total = write("reshape", total, shape=(write.shape(x)[0], self.weights.shape[1]))
        bases = _floats(write.node, "base_values", write.dtype(x))
        return write("add", total, write.builder.constant(bases)) if len(bases) else total


def _transform(write: Composition, score: str, transform: str) -> str:
    if transform not in ("NONE", "LOGISTIC", "SOFTMAX"):
        raise write.node.unsupported(f"post_transform {transform!r} is none of NONE, LOGISTIC and SOFTMAX")
    if transform == "NONE":
        return score
    return write("Sigmoid", score) if transform == "LOGISTIC" else write("Softmax", score, axis=-1)


def _flat(table: Array) -> Array:
    return table.reshape(-1).astype(np.int32)


def _ints(node: OnnxNode, key: str) -> Array:
    return np.asarray(node.ints(key) or (), np.int64)


def _floats(node: OnnxNode, key: str, dtype: str) -> Array:
    """Numbers of an attribute, or of the tensor of the attribute `KEY_as_tensor`."""
    tensor = node.tensor(f"{key}_as_tensor")
    return (np.asarray(node.numbers(key), np.float32) if tensor is None else tensor).astype(dtype)


def _rows(write: Composition) -> str:
    """The operand (rows, features) as floats."""
    x = write.operand(0)
    return x if write.dtype(x).startswith("float") else write.cast(x, "float32")


def _choice(node: OnnxNode, key: str, names: Sequence[str], default: int) -> str:
    """The name in an attribute, or that of its number."""
    value = node.attributes.get(key, default)
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else node.text(key, "")


def _tree_ensemble(write: Composition) -> str:
    node, x = write.node, _rows(write)
    modes, splits, leaves = (node.tensor(key) for key in ("nodes_modes", "nodes_splits", "leaf_weights"))
    if modes is None or splits is None or leaves is None:
        raise node.unsupported("needs nodes_modes, nodes_splits and leaf_weights")
    dtype, count, join = write.dtype(x), len(modes), _choice(node, "aggregate_function", tuple(_JOINS), 1)
    leaf = np.zeros(len(leaves), np.int64)

    def children(way: str) -> Array:
        ids, are_leaves = _ints(node, f"nodes_{way}nodeids"), _ints(node, f"nodes_{way}leafs")
        return np.concatenate([np.where(are_leaves != 0, count + ids, ids), leaf])

    weights = np.full((count + len(leaves), node.integer("n_targets", 1)), _JOINS[join][1], dtype)
    weights[np.arange(count, len(weights)), _ints(node, "leaf_targetids")] = leaves
    tracks = _ints(node, "nodes_missing_value_tracks_true")
    forest = _Forest(
        np.concatenate([modes, leaf + _LEAF]),
        np.concatenate([_ints(node, "nodes_featureids"), leaf]),
        np.concatenate([splits.astype(dtype), leaf.astype(dtype)]),
        children("true"),
        children("false"),
        np.concatenate([tracks if len(tracks) else np.zeros(count), leaf]),
        _ints(node, "tree_roots"),
        weights,
    )
    return _transform(write, forest.score(write, x, join), _choice(node, "post_transform", _TRANSFORMS, 0))


def _listed_forest(write: Composition, x: str, kind: str, targets: int, fill: float) -> _Forest:
    """The trees of an older operator, which lists nodes by tree and number, and weights (`kind`) apart."""
    node, dtype = write.node, write.dtype(x)
    trees = _ints(node, "nodes_treeids")
    numbers = {pair: at for at, pair in enumerate(zip(trees.tolist(), node.ints("nodes_nodeids") or (), strict=True))}
    modes = np.array([_MODES.index(mode.removeprefix("BRANCH_")) for mode in node.texts("nodes_modes")])

    def find(of_trees: Sequence[int], key: str) -> Array:
        return np.array([numbers.get(pair, -1) for pair in zip(of_trees, node.ints(key) or (), strict=True)], np.int64)

    yes, no = (np.where(modes == _LEAF, 0, find(trees.tolist(), f"nodes_{way}nodeids")) for way in ("true", "false"))
    weights, leaves = (
        np.full((len(modes), targets), fill, dtype),
        find(node.ints(f"{kind}_treeids") or (), f"{kind}_nodeids"),
    )
    if np.any(leaves < 0):
        raise node.unsupported("a leaf is not there")
    weights[leaves, _ints(node, f"{kind}_ids")] = _floats(node, f"{kind}_weights", dtype)
    tracks, (_, roots) = _ints(node, "nodes_missing_value_tracks_true"), np.unique(trees, return_index=True)
    return _Forest(
        modes,
        _ints(node, "nodes_featureids"),
        _floats(node, "nodes_values", dtype),
        yes,
        no,
        tracks if len(tracks) else np.zeros(len(modes)),
        roots,
        weights,
    )


def _regressor(write: Composition) -> str:
    node, x = write.node, _rows(write)
    join = node.text("aggregate_function", "SUM")
    forest = _listed_forest(write, x, "target", node.integer("n_targets", 1), _JOINS[join][1])
    score = _transform(write, forest.score(write, x, join), node.text("post_transform", "NONE"))
    return write.cast(score, "float32")


def _classifier(write: Composition) -> Sequence[str]:
    """The label and the scores of all classes. If all weights are of one of two classes, its score decides, as in ONNX
    Runtime: a share of 1 if no weight is negative, else the logarithm of odds.
    """
    node, x, transform = write.node, _rows(write), write.node.text("post_transform", "NONE")
    labels, ids = _ints(node, "classlabels_int64s"), _ints(node, "class_ids")
    if not len(labels):
        raise node.unsupported("its labels are strings; only integers are supported")
    forest = _listed_forest(write, x, "class", len(labels), 0.0)
    if len(labels) != 2 or len(set(ids.tolist())) > 1:
        score = forest.score(write, x, "SUM")
        index = write("ArgMax", score, axis=1, keepdims=0)
    else:
        forest.weights = forest.weights[:, ids[:1]]
        score = forest.score(write, x, "SUM")
        is_share = bool(forest.weights.min() >= 0)
        index = write("less", write.builder.scalar(0.5 * is_share, write.dtype(x)), score)
        index = write("reshape", write.cast(index, "int64"), shape=write.shape(x)[:1])
        other = write("sub", write.builder.scalar(1, write.dtype(x)), score)
        other = other if is_share and transform != "LOGISTIC" else write("neg", score)
        score, transform = write("concat", other, score, axis=1), "NONE" if transform == "SOFTMAX" else transform
    label = write("gather", write.builder.constant(labels), index, axis=0)
    return [label, write.cast(_transform(write, score, transform), "float32")]


def _scaler(write: Composition) -> str:
    x = _rows(write)
    offset, scale = (write.builder.constant(_floats(write.node, key, "float32")) for key in ("offset", "scale"))
    return write("mul", write("sub", write.cast(x, "float32"), offset), scale)


CONVERTERS: Mapping[str, Converter] = {
    f"{DOMAIN}.Scaler": compose(_scaler),
    f"{DOMAIN}.TreeEnsemble": compose(_tree_ensemble),
    f"{DOMAIN}.TreeEnsembleClassifier": compose(_classifier),
    f"{DOMAIN}.TreeEnsembleRegressor": compose(_regressor),
}
