"""Results whose number the data decides: computed for data that is known, refused by name for data that is not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from retune.compiler.core.errors import UnknownValueError
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.evaluate import evaluate

ModelOf = Callable[..., onnx.ModelProto]

_RNG = np.random.default_rng(3)
_CORNERS = np.sort(_RNG.uniform(0, 1, (2, 30, 2, 2)), axis=2).reshape(2, 30, 4).astype(np.float32)
_SCORES = _RNG.uniform(0, 1, (2, 3, 30)).astype(np.float32)
_LIMITS = [np.array([5]), np.array([0.3], np.float32), np.array([0.2], np.float32)]
_MANY = np.tile(_CORNERS[:1], (1, 140, 1)) + _RNG.uniform(0, 9, (1, 4200, 1)).astype(np.float32)
_WHOLE = _RNG.integers(0, 3, (4, 3)).astype(np.float32)

CASES: list[tuple[str, list[np.ndarray[Any, Any]], int, dict[str, Any]]] = [
    ("NonZero", [_WHOLE], 1, {}),
    ("Unique", [_WHOLE], 4, {}),
    ("Unique", [_WHOLE], 4, {"sorted": 0}),
    ("Unique", [_WHOLE], 4, {"axis": 1}),
    ("NonMaxSuppression", [_CORNERS, _SCORES, *_LIMITS], 1, {}),
    ("NonMaxSuppression", [_CORNERS, _SCORES, *_LIMITS], 1, {"center_point_box": 1}),
    (
        "NonMaxSuppression",
        [_MANY, _RNG.uniform(0, 1, (1, 2, 4200)).astype(np.float32), np.array([900]), _LIMITS[1]],
        1,
        {},
    ),
]


@pytest.mark.parametrize(("op_type", "arrays", "results", "attributes"), CASES)
def test_known_data_gives_what_onnxruntime_gives(
    op_type: str, arrays: list[np.ndarray[Any, Any]], results: int, attributes: dict[str, Any], model_of: ModelOf
) -> None:
    names = [f"x{place}" for place in range(len(arrays))]
    outputs = [f"y{place}" for place in range(results)]
    node = helper.make_node(op_type, names, outputs, **attributes)
    model = model_of([node], {name: array.shape for name, array in zip(names, arrays, strict=True)}, outputs)
    for entry, array in zip(model.graph.input, arrays, strict=True):
        entry.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    feed = dict(zip(names, arrays, strict=True))
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    for found, wanted in zip(evaluate(load_model(model, constants=feed), {}), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_unknown_data_is_named(model_of: ModelOf) -> None:
    model = model_of([helper.make_node("NonZero", ["x"], ["y"])], {"x": (2, 3)})
    with pytest.raises(UnknownValueError, match="on which the shape of the result depends") as raised:
        load_model(model)
    assert raised.value.inputs == ("x",)
