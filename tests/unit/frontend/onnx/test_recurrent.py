"""Recurrent cells unrolled give what ONNX Runtime gives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from retune.compiler.graph.ir import Graph

ModelOf = Callable[..., onnx.ModelProto]
Agrees = Callable[[onnx.ModelProto], Graph]

CELLS: list[tuple[str, int, dict[str, Any]]] = [
    ("RNN", 1, {"direction": "reverse"}),
    ("GRU", 3, {"direction": "bidirectional"}),
    ("GRU", 3, {"linear_before_reset": 1}),
    ("LSTM", 4, {"direction": "bidirectional"}),
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
