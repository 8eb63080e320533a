"""Recurrent cells unrolled give what ONNX Runtime gives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.pipeline import optimize

ModelOf = Callable[..., onnx.ModelProto]
Agrees = Callable[[onnx.ModelProto], Graph]

CELLS: list[tuple[str, int, dict[str, Any]]] = [
    ("RNN", 1, {"direction": "reverse"}),
    ("GRU", 3, {"direction": "bidirectional"}),
    ("GRU", 3, {"linear_before_reset": 1}),
    ("LSTM", 4, {"direction": "bidirectional"}),
    ("GRU", 3, {"clip": 0.4, "activations": ["Relu", "Tanh"]}),
    ("RNN", 1, {"clip": 0.4, "activations": ["Relu"]}),
]


@pytest.mark.parametrize(("op_type", "gates", "attributes"), CELLS)
def test_recurrent_cells_match_onnxruntime(
    op_type: str, gates: int, attributes: dict[str, Any], model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    rng = np.random.default_rng(1)
    directions, hidden, inputs = 2 if attributes.get("direction") == "bidirectional" else 1, 4, 3
    shapes = {"w": (gates * hidden, inputs), "r": (gates * hidden, hidden), "b": (2 * gates * hidden,)}
    weights = {k: rng.standard_normal((directions, *s), dtype=np.float32) for k, s in shapes.items()}
    node = helper.make_node(op_type, ["x", "w", "r", "b"], ["y", "h"], hidden_size=hidden, **attributes)
    agrees_with_onnxruntime(model_of([node], {"x": (5, 2, inputs)}, ["y", "h"], weights))


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_an_lstm_with_lengths_states_and_peepholes_matches_onnxruntime(
    direction: str, model_of: ModelOf, agrees_with_onnxruntime: Agrees
) -> None:
    rng = np.random.default_rng(2)
    hidden, inputs, batch = 4, 3, 2
    shapes = {"w": (16, inputs), "r": (16, hidden), "b": (32,), "h": (batch, hidden), "c": (batch, hidden), "p": (12,)}
    weights = {key: rng.standard_normal((1, *shape), dtype=np.float32) for key, shape in shapes.items()}
    lengths: dict[str, Any] = {**weights, "n": np.array([5, 2], np.int32)}
    node = helper.make_node("LSTM", ["x", "w", "r", "b", "n", "h", "c", "p"], ["y", "s", "t"],
                            hidden_size=hidden, direction=direction, clip=0.7)  # fmt: skip
    agrees_with_onnxruntime(model_of([node], {"x": (5, batch, inputs)}, ["y", "s", "t"], lengths))


@pytest.mark.parametrize(("op_type", "gates", "nodes"), [("RNN", 1, 4), ("GRU", 3, 6), ("LSTM", 4, 5)])
def test_a_step_has_few_nodes(op_type: str, gates: int, nodes: int, model_of: ModelOf) -> None:
    """The passes take time for each node of hundreds of steps."""
    steps, hidden = 64, 8
    weights = {key: np.ones((1, gates * hidden, hidden), np.float32) for key in "wr"}
    node = helper.make_node(op_type, ["x", "w", "r"], ["y"], hidden_size=hidden)
    model = model_of([node], {"x": (steps, 1, hidden)}, weights=weights)
    assert len(optimize(load_model(model)).nodes) < nodes * steps + 16
