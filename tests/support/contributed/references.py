"""Nodes that ONNX Runtime does not compute on CPUs, with what NumPy or an equivalent standard node computes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tests.support.contributed.case import Array, Case, Draw

Reference = tuple[Case, Sequence[Array]]


def _standard(op: str, operands: Mapping[str, Array | None], **attributes: Any) -> Array:
    """What ONNX Runtime computes for a standard node."""
    found = Case(op, operands, attributes, domain="", opset=20).expected()
    assert found is not None
    return found[0]


def _gelu(x: Array, approximate: str = "none") -> Array:
    return _standard("Gelu", {"x": x}, approximate=approximate)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _bias_add(draw: Draw) -> Reference:
    x, bias, skip = draw.real(2, 6, 4), draw.real(4), draw.real(2, 6, 4)
    return Case("BiasAdd", {"x": x, "bias": bias, "skip": skip}), [x + bias + skip]


def _bias_dropout(draw: Draw) -> Reference:
    x, bias, rest = draw.real(2, 6, 4), draw.real(4), draw.real(2, 6, 4)
    return Case("BiasDropout", {"x": x, "bias": bias, "rest": rest}), [x + bias + rest]


def _bias_softmax(draw: Draw) -> Reference:
    x, bias, axis = draw.real(2, 3, 4, 5), draw.real(2, 1, 1, 5), draw.count(1, 3)
    merged = (x + bias).reshape(int(np.prod(x.shape[:axis])), -1)
    weights = np.exp(merged - merged.max(axis=1, keepdims=True))
    result = (weights / weights.sum(axis=1, keepdims=True)).reshape(x.shape)
    return Case("BiasSoftmax", {"x": x, "bias": bias}, {"axis": axis, "is_inner_broadcast": 1}), [result]


def _bias_split_gelu(draw: Draw) -> Reference:
    x, bias = draw.real(2, 6, 8), draw.real(8)
    left, right = np.split(x + bias, 2, axis=2)
    return Case("BiasSplitGelu", {"x": x, "bias": bias}), [left * _gelu(right)]


def _matmul_activation(draw: Draw) -> Reference:
    a, b = draw.real(4, 6), draw.real(5, 6)
    attributes = {"transB": 1, "alpha": 0.5, "activation": "Relu"}
    return Case("FusedMatMulActivation", {"a": a, "b": b}, attributes), [np.maximum(0.5 * (a @ b.T), 0)]


def _gemm_fast_gelu(draw: Draw) -> Reference:
    a, b, bias = draw.real(4, 6), draw.real(6, 5), draw.real(5)
    return Case("GemmFastGelu", {"a": a, "b": b, "bias": bias}), [_gelu(a @ b + bias, "tanh")]


def _group_norm(draw: Draw) -> Reference:
    x, gamma, beta, last = draw.real(2, 6, 3, 4), draw.real(6), draw.real(6), draw.count(0, 1)
    skip, bias = draw.real(2, 6), draw.real(6)
    total = x + skip[:, :, None, None] + bias[:, None, None]
    groups = total.reshape(2, 3, -1)
    normal = (groups - groups.mean(axis=2, keepdims=True)) / np.sqrt(groups.var(axis=2, keepdims=True) + 1e-5)
    result = normal.reshape(x.shape) * gamma[:, None, None] + beta[:, None, None]
    result = result * _sigmoid(result)
    operands = {"x": np.moveaxis(x, 1, 3) if last else x, "gamma": gamma, "beta": beta, "skip": skip, "bias": bias}
    attributes = {"groups": 3, "activation": 1, "channels_last": last}
    expected = [np.ascontiguousarray(np.moveaxis(each, 1, 3)) if last else each for each in (result, total)]
    return Case("SkipGroupNorm", operands, attributes, ("y", "sum")), expected


def _plain_group_norm(draw: Draw) -> Reference:
    case, _ = _group_norm(draw)
    x, gamma, beta = (case.operands[name] for name in ("x", "gamma", "beta"))
    assert x is not None
    first = np.moveaxis(x, 3, 1) if case.attributes["channels_last"] else x
    groups = first.reshape(2, 3, -1)
    normal = (groups - groups.mean(axis=2, keepdims=True)) / np.sqrt(groups.var(axis=2, keepdims=True) + 1e-5)
    assert gamma is not None
    assert beta is not None
    result = normal.reshape(first.shape) * gamma[:, None, None] + beta[:, None, None]
    result = np.moveaxis(result, 1, 3) if case.attributes["channels_last"] else result
    operands = {"x": x, "gamma": gamma, "beta": beta}
    return Case("GroupNorm", operands, {**case.attributes, "activation": 0}), [np.ascontiguousarray(result)]


def _nhwc(op: str) -> Callable[[Draw], Reference]:
    def convolution(draw: Draw) -> Reference:
        x, w, b = draw.real(1, 6, 7, 4), draw.real(8, 2, 3, 3), draw.real(8)
        expected = _standard("Conv", {"x": np.moveaxis(x, 3, 1).copy(), "w": w, "b": b}, group=2, pads=[1, 1, 1, 1])
        kernel = np.moveaxis(w, 1, 3).copy() if op == "NhwcConv" else w
        case = Case(op, {"x": x, "w": kernel, "b": b}, {"group": 2, "pads": [1, 1, 1, 1]})
        return case, [np.moveaxis(expected, 1, 3).copy()]

    return convolution


def _reduce_mean(draw: Draw) -> Reference:
    x = draw.stored("uint8", 2, 3, 4)
    parameters: dict[str, float] = {"x_scale": 0.02, "x_zero": 120, "y_scale": 0.01, "y_zero": 130}
    mean = ((x.astype(np.float64) - 120) * 0.02).mean(axis=(1, 2))
    expected = np.clip(np.rint(mean / 0.01) + 130, 0, 255).astype(np.uint8)
    kinds = {"scale": "float32", "zero": "uint8"}
    operands = {"x": x, **{name: np.asarray(value, kinds[name[2:]]) for name, value in parameters.items()}}
    return Case("QLinearReduceMean", operands, {"axes": [1, 2], "keepdims": 0}, constants=frozenset(parameters)), [
        expected
    ]


def _rfft(draw: Draw) -> Reference:
    x = draw.real(2, 3, 8)
    spectrum = np.fft.rfft(x)
    expected = np.stack([spectrum.real, spectrum.imag], axis=-1).astype(np.float32)
    return Case("Rfft", {"x": x}, {"onesided": 1, "signal_ndim": 1}), [expected]


def _irfft(draw: Draw) -> Reference:
    x = draw.real(2, 3, 5, 2)
    expected = np.fft.irfft(x[..., 0] + 1j * x[..., 1]).astype(np.float32)
    return Case("Irfft", {"x": x}, {"onesided": 1, "signal_ndim": 1}), [expected]


def _scaled_silu(draw: Draw) -> Reference:
    x, scale = draw.real(3, 5), np.asarray(0.7, np.float32)
    return Case("ScaledSiLU", {"x": x, "scale": scale}), [0.7 * x * _sigmoid(0.7 * x)]


def _transpose_matmul(draw: Draw) -> Reference:
    a, b = draw.real(6, 4), draw.real(6, 5)
    return Case("TransposeMatMul", {"a": a, "b": b}, {"transA": 1}), [a.T @ b]


def _packed(draw: Draw) -> Reference:
    """MultiHeadAttention of packed query, key and value, or key and value, equals that of separate operands."""
    heads, size, length = 2, 4, draw.count(1, 5)
    parts = [draw.real(2, length, heads, size) for _ in range(3)]
    flat = [part.reshape(2, length, heads * size) for part in parts]
    expected = Case("MultiHeadAttention", dict(zip("qkv", flat, strict=True)), {"num_heads": heads}).expected()
    assert expected is not None
    both = {"q": flat[0], "kv": np.stack(parts[1:], axis=3)}
    operands = {"qkv": np.stack(parts, axis=3)} if draw.chance() else both
    return Case("MultiHeadAttention", operands, {"num_heads": heads}), expected


def _normalized_heads(draw: Draw) -> Reference:
    """GroupQueryAttention with norms of the heads equals that of normalized heads."""
    sizes, weights = {"q": 4, "k": 2, "v": 2}, [draw.real(16), draw.real(16)]
    tokens = {name: draw.real(1, 3, count, 16) for name, count in sizes.items()}
    shared: dict[str, Array | None] = {"last": np.asarray([2], "int32"), "total": np.asarray([3], "int32")}
    attributes: dict[str, float] = {"num_heads": 4, "kv_num_heads": 2}
    normal = dict(tokens)
    for name, weight in zip("qk", weights, strict=True):
        square = np.square(tokens[name]).mean(axis=3, keepdims=True)
        normal[name] = tokens[name] / np.sqrt(square + 1e-3) * weight
    plain, separate = ({n: a.reshape(1, 3, -1) for n, a in each.items()} for each in (tokens, normal))
    constants, past = frozenset({"total"}), dict.fromkeys(("past_k", "past_v"))
    known = Case(
        "GroupQueryAttention", {**separate, **past, **shared}, attributes, ("y", "k1", "v1"), constants
    ).expected()
    assert known is not None
    unused = dict.fromkeys(("cos", "sin", "places", "bias", "sink", "k_scale", "v_scale"))
    operands = {**plain, **past, **shared, **unused, "q_norm": weights[0], "k_norm": weights[1]}
    attributes = {**attributes, "qk_norm_epsilon": 1e-3}
    return Case("GroupQueryAttention", operands, attributes, ("y", "k1", "v1"), constants), known


REFERENCES: Mapping[str, Callable[[Draw], Reference]] = {
    "BiasAdd": _bias_add,
    "BiasDropout": _bias_dropout,
    "BiasSoftmax": _bias_softmax,
    "BiasSplitGelu": _bias_split_gelu,
    "FusedMatMulActivation": _matmul_activation,
    "GemmFastGelu": _gemm_fast_gelu,
    "GroupNorm": _plain_group_norm,
    "GroupQueryAttention of normalized heads": _normalized_heads,
    "Irfft": _irfft,
    "MultiHeadAttention of packed operands": _packed,
    "NhwcConv": _nhwc("NhwcConv"),
    "NhwcFusedConv": _nhwc("NhwcFusedConv"),
    "QLinearReduceMean": _reduce_mean,
    "Rfft": _rfft,
    "ScaledSiLU": _scaled_silu,
    "SkipGroupNorm": _group_norm,
    "TransposeMatMul": _transpose_matmul,
}
"""A random node and its results, by operator or form."""
