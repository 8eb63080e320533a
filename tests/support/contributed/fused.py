"""Random nodes of contributed products, convolutions, activations, normalizations and operators on arrays."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.support.contributed.case import Array, Case, Draw, Operands

_FUSED = {
    **{name: {} for name in ("Relu", "Tanh", "Sigmoid", "Softplus", "Softsign")},
    "LeakyRelu": {"activation_alpha": 0.2},
    "Elu": {"activation_alpha": 0.4},
    "HardSigmoid": {"activation_alpha": 0.3, "activation_beta": 0.4},
}
"""Activations of FusedGemm."""


def _bias_gelu(draw: Draw) -> Case:
    columns = draw.count(1, 20)
    return Case("BiasGelu", {"a": draw.real(2, draw.count(1, 5), columns), "b": draw.real(columns)})


def _gelu(draw: Draw) -> Case:
    return Case("Gelu", {"x": draw.real(3, draw.count(1, 20))})


def _fast_gelu(draw: Draw) -> Case:
    columns = draw.count(1, 20)
    return Case("FastGelu", {"a": draw.real(2, columns), "b": draw.real(columns) if draw.chance() else None})


def _quick_gelu(draw: Draw) -> Case:
    return Case("QuickGelu", {"x": draw.real(3, draw.count(1, 20))}, {"alpha": draw.pick(1.702, 0.5)})


def _fused_matmul(draw: Draw) -> Case:
    rows, inner, columns = (draw.count(1, 6) for _ in range(3))
    attributes = {key: draw.count(0, 1) for key in ("transA", "transB", "transBatchA", "transBatchB")}

    def factor(shape: tuple[int, int], side: str) -> Array:
        batch, (first, second) = (3, 2), shape[:: -1 if attributes[f"trans{side}"] else 1]
        return draw.real(*((first, *batch) if attributes[f"transBatch{side}"] else (*batch, first)), second)

    operands: Operands = {"a": factor((rows, inner), "A"), "b": factor((inner, columns), "B")}
    return Case("FusedMatMul", operands, {**attributes, "alpha": draw.pick(1.0, 0.3)})


def _fused_gemm(draw: Draw) -> Case:
    name = draw.pick(*_FUSED)
    operands: Operands = {"a": draw.real(4, 6), "b": draw.real(6, 5), "c": draw.real(5) if draw.chance() else None}
    return Case("FusedGemm", operands, {"activation": name, "alpha": 0.5, "beta": 1.5, **_FUSED[name]})


def _fused_conv(draw: Draw) -> Case:
    name, *parameters = draw.pick(
        ("Relu",), ("Tanh",), ("LeakyRelu", 0.2), ("Clip", -0.3, 0.6), ("HardSigmoid", 0.2, 0.4)
    )
    attributes: dict[str, Any] = {"activation": name, "kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    if parameters:
        attributes["activation_params"] = parameters
    operands: Operands = {
        "x": draw.real(1, 4, 6, 6),
        "w": draw.real(8, 4, 3, 3),
        "b": draw.real(8) if draw.chance() else None,
    }
    return Case("FusedConv", {**operands, "z": draw.real(1, 8, 6, 6) if draw.chance() else None}, attributes)


def _nhwc_max_pool(draw: Draw) -> Case:
    x = draw.stored(draw.pick("int8", "uint8"), 1, 6, 7, 4)
    return Case("NhwcMaxPool", {"x": x}, {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]})


def _skip_norm(draw: Draw) -> Case:
    shape = (2, draw.count(1, 5), draw.count(2, 20))
    skip = draw.real(*draw.pick(shape, (1, *shape[1:]), shape[1:]))
    operands: Operands = {"x": draw.real(*shape), "skip": skip, "gamma": draw.real(shape[2])}
    operands |= {key: draw.real(shape[2]) if draw.chance() else None for key in ("beta", "bias")}
    return Case("SkipLayerNormalization", operands, {"epsilon": 1e-5}, ("y", "", "", "sum"))


def _skip_rms_norm(draw: Draw) -> Case:
    shape = (2, draw.count(1, 5), draw.count(2, 20))
    operands: Operands = {"x": draw.real(*shape), "skip": draw.real(*shape), "gamma": draw.real(shape[2])}
    operands["bias"] = draw.real(shape[2]) if draw.chance() else None
    return Case("SkipSimplifiedLayerNormalization", operands, {"epsilon": 1e-5}, ("y", "", "", "sum"))


def _norm(name: str) -> Callable[[Draw], Case]:
    def norm(draw: Draw) -> Case:
        columns = draw.count(2, 20)
        operands = {"x": draw.real(2, 3, columns), "scale": draw.real(columns)}
        if name == "LayerNormalization":
            operands["bias"] = draw.real(columns)
        attributes = {"axis": -1, "epsilon": draw.pick(1e-5, 1e-3)}
        return Case(name, operands, attributes, domain="", opset=13)

    return norm


def _tokens(draw: Draw, batch: int, length: int) -> tuple[Operands, Array | None]:
    """Identifiers of words and segments, and a mask of leading tokens."""
    words = draw.rng.integers(0, 20, (batch, length)).astype("int32")
    segments = draw.rng.integers(0, 2, (batch, length)).astype("int32")
    lengths = draw.rng.integers(1, length + 1, (batch, 1))
    mask = (np.arange(length) < lengths).astype("int32") if draw.chance() else None
    return {"words": words, "segments": segments}, mask


def _embedding(draw: Draw) -> Case:
    batch, length, columns = 2, draw.count(1, 6), draw.count(2, 16)
    operands, mask = _tokens(draw, batch, length)
    operands |= {"w": draw.real(20, columns), "p": draw.real(9, columns), "s": draw.real(2, columns)}
    operands |= {"gamma": draw.real(columns), "beta": draw.real(columns), "mask": mask}
    if draw.chance(0.3):
        operands |= {"segments": None, "s": None}
    if draw.chance(0.3):
        operands["places"] = draw.rng.integers(0, 9, (draw.pick(1, batch), length)).astype("int32")
    return Case("EmbedLayerNormalization", operands, {"epsilon": 1e-5}, ("y", "lengths", "sum"))


def _quantized_embedding(draw: Draw) -> Case:
    batch, length, columns = 2, draw.count(1, 6), draw.count(2, 16)
    operands, mask = _tokens(draw, batch, length)
    sizes = {"w": (20, columns), "p": (9, columns), "s": (2, columns), "gamma": (columns,), "beta": (columns,)}
    operands |= {name: draw.stored("uint8", *size) for name, size in sizes.items()}
    operands["mask"] = mask
    operands |= {f"{name}_scale": draw.scale() for name in sizes}
    operands |= {f"{name}_zero": draw.zero("uint8") for name in sizes}
    return Case("QEmbedLayerNormalization", operands, {"epsilon": 1e-5}, ("y", "lengths"))


def _inverse(draw: Draw) -> Case:
    rows = draw.count(1, 6)
    # Far from singular, but with zeros on the diagonal: rows must be exchanged.
    x = np.roll(np.eye(rows) * 3, 1, axis=0) + 0.3 * draw.real(2, rows, rows)
    return Case("Inverse", {"x": x.astype(np.float32)}, tolerance=1e-4)


def _array_cases(draw: Draw) -> Mapping[str, Case]:
    x = draw.real(3, 4, 5)
    numbers = {"GatherND": draw.rng.integers(0, 3, (6, 2)), "Pad": np.asarray([[1, 0, 2, 1]])}
    return {
        "CDist": Case(
            "CDist", {"a": draw.real(3, 4), "b": draw.real(5, 4)}, {"metric": draw.pick("euclidean", "sqeuclidean")}
        ),
        "ConvTransposeWithDynamicPads": Case(
            "ConvTransposeWithDynamicPads",
            {"x": draw.real(1, 3, 4, 4), "w": draw.real(3, 2, 3, 3), "pads": np.ones(4, np.int64), "b": draw.real(2)},
            {"strides": [2, 2]},
            constants=frozenset({"pads"}),
        ),
        "ExpandDims": Case(
            "ExpandDims", {"x": x, "axis": np.asarray(draw.count(-4, 3), "int32")}, constants=frozenset({"axis"})
        ),
        "GatherND": Case("GatherND", {"x": x, "i": numbers["GatherND"]}),
        "GridSample": Case(
            "GridSample",
            {"x": draw.real(1, 2, 5, 6), "g": draw.real(1, 3, 4, 2)},
            {"mode": draw.pick("bilinear", "bicubic")},
        ),
        "Pad": Case("Pad", {"x": draw.real(3, 4), "pads": numbers["Pad"]}, constants=frozenset({"pads"})),
        "Range": Case(
            "Range",
            {"start": np.ones(1, "float32"), "limit": np.full(1, draw.count(2, 9), "float32")},
            constants=frozenset({"start", "limit"}),
        ),
        "Trilu": Case(
            "Trilu",
            {"x": x, "k": np.asarray(draw.count(-2, 2))},
            {"upper": draw.count(0, 1)},
            constants=frozenset({"k"}),
        ),
    }


def _of_arrays(name: str) -> Callable[[Draw], Case]:
    return lambda draw: _array_cases(draw)[name]


CASES: Mapping[str, Callable[[Draw], Case]] = {
    "BiasGelu": _bias_gelu,
    "EmbedLayerNormalization": _embedding,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "Inverse": _inverse,
    "LayerNormalization": _norm("LayerNormalization"),
    "NhwcMaxPool": _nhwc_max_pool,
    "QEmbedLayerNormalization": _quantized_embedding,
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _norm("SimplifiedLayerNormalization"),
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    **{name: _of_arrays(name) for name in _array_cases(Draw(0))},
}
"""A random node of each operator that ONNX Runtime computes on CPUs."""
