"""Attention of float16 and bfloat16 in each of its forms: scores, weights and sums are float32, the output is rounded.

The reference is ONNX Runtime with the same operands in float32.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import retune
from retune.compiler.core.dtype import HALVES
from tests.support.contributed.case import Array, Case, Draw
from tests.support.tiers import long_except

HEADS, TOKENS, SIZE = 4, 32, 16
HIDDEN = HEADS * SIZE
STANDARD: dict[str, Any] = {"domain": "", "opset": 23}
NOTHING = np.zeros((1, TOKENS), "int32")
"""A mask that excludes every key."""


def _heads(draw: Draw, tokens: int = TOKENS) -> dict[str, Array | None]:
    """Query, key and value whose scores reach 20."""
    return {
        name: 2 * draw.real(1, HEADS, extent, SIZE) for name, extent in (("q", tokens), ("k", TOKENS), ("v", TOKENS))
    }


def _tokens(draw: Draw, tokens: int = TOKENS, own: int = HEADS) -> dict[str, Array | None]:
    return {name: 2 * draw.real(1, tokens, heads * SIZE) for name, heads in (("q", HEADS), ("k", own), ("v", own))}


def _projected(draw: Draw, **others: Array) -> dict[str, Array | None]:
    weight = draw.real(HIDDEN, 3 * HIDDEN) / 4
    return {"x": draw.real(1, TOKENS, HIDDEN), "w": weight, "b": draw.real(3 * HIDDEN), **others}


def _step(draw: Draw) -> dict[str, Array | None]:
    """A token behind a cache."""
    cache: dict[str, Array | None] = {name: draw.real(1, 2, TOKENS - 1, SIZE) for name in ("past_k", "past_v")}
    lengths = {"last": np.asarray([TOKENS - 1], "int32"), "total": np.asarray([TOKENS], "int32")}
    return {**_tokens(draw, 1, 2), **cache, **lengths}


_OWN, _HALF_OWN = {"num_heads": HEADS}, {"num_heads": HEADS, "kv_num_heads": 2}
_CACHES = ("y", "keys", "values")
FORMS: dict[str, Callable[[Draw], Case]] = {
    "Attention": lambda draw: Case("Attention", _heads(draw), **STANDARD),
    "Attention causal": lambda draw: Case("Attention", _heads(draw), {"is_causal": 1}, **STANDARD),
    "Attention capped": lambda draw: Case("Attention", _heads(draw), {"softcap": 9.0}, **STANDARD),
    "Attention masked": lambda draw: Case(
        "Attention", {**_heads(draw), "mask": 3 * draw.real(1, 1, TOKENS, TOKENS)}, **STANDARD
    ),
    "Attention of a token": lambda draw: Case("Attention", _heads(draw, 1), **STANDARD),
    "MultiHeadAttention": lambda draw: Case("MultiHeadAttention", _tokens(draw), _OWN),
    "MultiHeadAttention biased": lambda draw: Case(
        "MultiHeadAttention",
        {**_tokens(draw), "b": None, "mask": None, "bias": draw.real(1, HEADS, TOKENS, TOKENS)}, _OWN,
    ),
    "MultiHeadAttention of nothing": lambda draw: Case(
        "MultiHeadAttention", {**_tokens(draw), "b": None, "mask": NOTHING}, {**_OWN, "unidirectional": 1}
    ),
    "GroupQueryAttention": lambda draw: Case(
        "GroupQueryAttention",
        {**_step(draw), **_tokens(draw, own=2), "past_k": None, "past_v": None},
        _HALF_OWN, _CACHES, frozenset({"total"}),
    ),
    "GroupQueryAttention of a token": lambda draw: Case(
        "GroupQueryAttention", _step(draw), _HALF_OWN, _CACHES, frozenset({"total", "last"})
    ),
    "Attention projected": lambda draw: Case("Attention", _projected(draw), _OWN, constants=frozenset("wb")),
    "Attention projected, of nothing": lambda draw: Case(
        "Attention", _projected(draw, mask=NOTHING), _OWN, constants=frozenset("wb")
    ),
    "Attention projected, of no finite score": lambda draw: Case(
        "Attention", _projected(draw, mask=NOTHING), {**_OWN, "mask_filter_value": -3.4e38}, constants=frozenset("wb")
    ),
}  # fmt: skip


def _off(result: Array, exact: Array, half: str) -> float:
    """The largest error of a result, in those of the exact result when it is rounded."""
    errors = (np.abs(array.astype("float64") - exact).max() for array in (result, exact.astype(half)))
    return float(np.divide(*errors))


def _in(case: Case, dtype: str) -> Case:
    """The node with floats of another type."""
    is_float = {name: array is not None and array.dtype.kind in "fV" for name, array in case.operands.items()}
    operands = {n: a.astype(dtype) if a is not None and is_float[n] else a for n, a in case.operands.items()}
    return replace(case, operands=operands)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("form", long_except(["Attention masked", "Attention projected, of nothing"], FORMS))
def test_attention_of_halves_is_rounded_once(form: str, half: str) -> None:
    case = FORMS[form](Draw(3))
    narrow = _in(case, half)
    wide = _in(narrow, "float32")
    expected = wide.expected()
    assert expected is not None
    model = narrow.model([array.astype(half) for array in expected])
    result = retune.compile(model, threads=1)(**narrow.fed)
    result = result[0] if isinstance(result, list | tuple) else result
    # Projected queries, keys and values are rounded, too.
    assert _off(np.asarray(result), expected[0], half) < (6 if "projected" in form else 1.02)


def _written_out(kind: int, tokens: int, exclude: bool) -> onnx.ModelProto:
    """Attention as products, a scale, a mask and a softmax."""
    half = helper.tensor_dtype_to_np_dtype(kind)
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["product"]),
        helper.make_node("Div", ["product", "scale"], ["scaled"]),
        helper.make_node(
            "Where" if exclude else "Add", ["allowed", "scaled", "never"] if exclude else ["scaled", "mask"], ["scores"]
        ),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    shapes = {"q": tokens, "k": TOKENS, "v": TOKENS}
    inputs = [helper.make_tensor_value_info(n, kind, (1, HEADS, extent, SIZE)) for n, extent in shapes.items()]
    mask = ("allowed", TensorProto.BOOL) if exclude else ("mask", kind)
    inputs.append(helper.make_tensor_value_info(*mask, (1, 1, 1, TOKENS)))
    output = helper.make_tensor_value_info("y", kind, (1, HEADS, tokens, SIZE))
    numbers = [numpy_helper.from_array(np.asarray(n, half), name) for name, n in (("scale", 3.7), ("never", -1e4))]
    graph = helper.make_graph(nodes, "attention", inputs, [output], numbers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("tokens", long_except([TOKENS], [TOKENS, 5, 1]))
@pytest.mark.parametrize("exclude", long_except([False], [False, True]))
def test_attention_written_out_in_halves_is_rounded_once(half: str, tokens: int, exclude: bool) -> None:
    draw = Draw(5)
    operands = {n: a for n, a in _heads(draw, tokens).items() if a is not None}
    operands["mask"] = 3 * draw.real(1, 1, 1, TOKENS)
    narrow = {name: array.astype(half) for name, array in operands.items()}
    if exclude:
        narrow["allowed"] = narrow.pop("mask") > 0
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(half))
    network = retune.compile(_written_out(kind, tokens, exclude), threads=1)
    q, k, v = (narrow[name].astype("float64") for name in "qkv")
    scores = q @ k.swapaxes(2, 3) / float(np.asarray(3.7, half))
    scores = np.where(narrow["allowed"], scores, -1e4) if exclude else scores + narrow["mask"].astype("float64")
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    exact = weights / weights.sum(-1, keepdims=True) @ v
    assert _off(np.asarray(network(**narrow)), exact, half) < 1.05
    if tokens == TOKENS:
        assert sum("attention" in kernel.name for kernel in network.report().kernels) == 1
