"""Random nodes of contributed quantized operators, with constant and computed scales."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.support.contributed.case import Array, Case, Draw, Operands


def _parameters(*names: str) -> frozenset[str]:
    return frozenset(f"{name}_{word}" for name in names for word in ("scale", "zero"))


def _operand(draw: Draw, name: str, dtype: str, shape: tuple[int, ...]) -> Operands:
    """Bytes with a scale and a zero point."""
    return {name: draw.stored(dtype, *shape), **_quantization(draw, name, dtype)}


def _quantization(draw: Draw, name: str, dtype: str, high: float = 0.05) -> Operands:
    return {f"{name}_scale": draw.scale(high=high), f"{name}_zero": draw.zero(dtype)}


def _known(draw: Draw, *names: str) -> frozenset[str]:
    """Constant scales, in most cases."""
    return _parameters(*names) if draw.chance(0.7) else frozenset()


def _binary(op: str) -> Callable[[Draw], Case]:
    def binary(draw: Draw) -> Case:
        dtype = draw.pick("int8", "uint8")
        shapes = ((3, 4, 5), (3, 1, 5), (5,), (), (4, 1))
        operands = {**_operand(draw, "a", dtype, draw.pick(*shapes)), **_operand(draw, "b", dtype, draw.pick(*shapes))}
        return Case(op, {**operands, **_quantization(draw, "y", dtype)}, constants=_known(draw, "a", "b", "y"))

    return binary


def _unary(
    op: str, attributes: Callable[[Draw], Mapping[str, Any]], shape: tuple[int, ...], high: float
) -> Callable[[Draw], Case]:
    def unary(draw: Draw) -> Case:
        dtype, chosen = draw.pick("int8", "uint8"), attributes(draw)
        own = (shape[0], *shape[2:], shape[1]) if chosen.get("channels_last") else shape
        operands = {**_operand(draw, "x", dtype, own), **_quantization(draw, "y", dtype, high)}
        return Case(op, operands, chosen, constants=_known(draw, "x", "y"))

    return unary


def _pool_attributes(draw: Draw) -> Mapping[str, Any]:
    kernel = [draw.count(1, 3), draw.count(1, 3)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": [draw.count(1, 2), draw.count(1, 2)]}
    attributes |= {"channels_last": draw.count(0, 1), "ceil_mode": draw.count(0, 1)}
    # With both, ONNX Runtime counts elements beyond the padding, which ONNX does not.
    if not attributes["ceil_mode"]:
        attributes |= {"count_include_pad": draw.count(0, 1), "pads": [draw.count(0, size - 1) for size in kernel] * 2}
    return attributes


def _concat(draw: Draw) -> Case:
    dtype, axis = draw.pick("int8", "uint8"), draw.count(0, 2)
    operands: Operands = dict(_quantization(draw, "y", dtype))
    names = [f"x{number}" for number in range(draw.count(1, 4))]
    for name in names:
        shape = [2, 3, 4]
        shape[axis] = draw.count(1, 4)
        operands |= _operand(draw, name, dtype, tuple(shape))
    return Case("QLinearConcat", operands, {"axis": axis}, constants=_parameters("y", *names))


def _where(draw: Draw) -> Case:
    dtype = draw.pick("int8", "uint8")
    operands: Operands = {"c": draw.rng.random((3, 1, 5)) < 0.5}
    operands |= {**_operand(draw, "a", dtype, (3, 4, 1)), **_operand(draw, "b", dtype, (4, 5))}
    constants = _parameters("a", "b", "y")
    return Case("QLinearWhere", {**operands, **_quantization(draw, "y", dtype)}, constants=constants)


def _weight(draw: Draw, shape: tuple[int, ...], columns: tuple[int, ...]) -> Operands:
    """Bytes within 127 of their zero point, with a scale and zero point for all or for each column."""
    dtype, own = draw.pick("int8", "uint8"), draw.pick((), columns)
    zero = 0 if dtype == "int8" else 128
    numbers = (zero + draw.rng.integers(-127, 128, shape)).astype(dtype)
    return {"w": numbers, "w_scale": draw.scale(*own), "w_zero": np.full(own, zero, dtype)}


def _factor_type(draw: Draw, weight: Mapping[str, Array | None]) -> str:
    """ONNX Runtime multiplies no int8 with uint8."""
    matrix = weight["w"]
    assert matrix is not None
    return "uint8" if matrix.dtype == np.uint8 else str(draw.pick("int8", "uint8"))


def _matrix_constants(draw: Draw) -> frozenset[str]:
    return frozenset({"w"} | _parameters("w")) if draw.chance(0.7) else frozenset()


def _gemm(draw: Draw) -> Case:
    rows, inner, columns, first, second = (draw.count(*ends) for ends in ((1, 5), (1, 40), (1, 5), (0, 1), (0, 1)))
    weight = _weight(draw, (columns, inner) if second else (inner, columns), (columns,))
    dtype = _factor_type(draw, weight)
    operands: Operands = {**_operand(draw, "a", dtype, (inner, rows) if first else (rows, inner)), **weight}
    shape = draw.pick((rows, columns), (columns,), (1, columns))
    operands["c"] = draw.rng.integers(-1000, 1000, shape).astype("int32") if draw.chance() else None
    if draw.chance():
        operands |= _quantization(draw, "y", dtype, 0.3)
    attributes = {"transA": first, "transB": second, "alpha": draw.pick(1.0, 0.5)}
    constants = _matrix_constants(draw) | (_parameters("y") if "y_scale" in operands else frozenset())
    return Case("QGemm", operands, attributes, constants=constants, tolerance=1e-5)


def _dynamic_product(draw: Draw) -> Case:
    rows, inner, columns = draw.count(1, 5), draw.count(1, 40), draw.count(1, 5)
    operands: Operands = {"a": draw.real(2, rows, inner), **_weight(draw, (inner, columns), (columns,))}
    operands["b"] = draw.real(columns) if draw.chance() else None
    return Case("DynamicQuantizeMatMul", operands, constants=_matrix_constants(draw))


def _integer_product(draw: Draw) -> Case:
    rows, inner, columns = draw.count(1, 5), draw.count(1, 40), draw.count(1, 5)
    weight = _weight(draw, (inner, columns), (columns,))
    dtype = _factor_type(draw, weight)
    operands: Operands = {"a": draw.stored(dtype, 2, rows, inner), "w": weight["w"], "a_scale": draw.scale()}
    operands |= {"w_scale": weight["w_scale"], "a_zero": draw.zero(dtype), "w_zero": weight["w_zero"]}
    operands["b"] = draw.real(columns) if draw.chance() else None
    return Case("MatMulIntegerToFloat", operands, constants=_matrix_constants(draw))


def _wide_product(draw: Draw) -> Case:
    operands: Operands = {name: draw.rng.integers(-500, 500, (4, 4)).astype("int16") for name in "ab"}
    return Case("MatMulInteger16", operands, quanta=0)


def _convolution(draw: Draw) -> Case:
    groups, last = draw.pick(1, 2), draw.count(0, 1)
    weight = _weight(draw, (8, 4 // groups, 3, 3), (8,))
    dtype = _factor_type(draw, weight)
    operands: Operands = {**_operand(draw, "x", dtype, (1, 6, 7, 4) if last else (1, 4, 6, 7)), **weight}
    operands |= _quantization(draw, "y", dtype, 0.3)
    operands["b"] = draw.rng.integers(-1000, 1000, 8).astype("int32") if draw.chance() else None
    constants = frozenset({"w", "b"} | _parameters("w", "x", "y")) if draw.chance(0.7) else frozenset()
    attributes = {"group": groups, "channels_last": last, "pads": [1, 1, 1, 1]}
    return Case("QLinearConv", operands, attributes, constants=constants)


def _lstm(draw: Draw) -> Case:
    steps, batch, inputs, hidden = (draw.count(*ends) for ends in ((1, 4), (1, 3), (1, 8), (1, 6)))
    direction = draw.pick("forward", "reverse", "bidirectional")
    count, dtype = (2 if direction == "bidirectional" else 1), draw.pick("int8", "uint8")
    zero = 0 if dtype == "int8" else 128
    own = draw.pick((count,), (count, 4 * hidden))
    operands: Operands = {"x": draw.real(steps, batch, inputs)}
    for name, rows in (("w", inputs), ("r", hidden)):
        operands[name] = (zero + draw.rng.integers(-127, 128, (count, rows, 4 * hidden))).astype(dtype)
    operands["b"] = draw.real(count, 8 * hidden)
    # Backward, ONNX Runtime turns each sequence around: other states share a range.
    several = draw.chance() and direction == "forward"
    operands["lengths"] = draw.rng.integers(1, steps + 1, batch).astype("int32") if several else None
    state = draw.chance()
    operands |= {name: draw.real(count, batch, hidden) if state else None for name in ("h", "c")}
    operands["p"] = draw.real(count, 3 * hidden) if draw.chance(0.3) else None
    for name in ("w", "r"):
        operands |= {f"{name}_scale": draw.scale(*own, high=0.01), f"{name}_zero": np.full(own, zero, dtype)}
    attributes = {"hidden_size": hidden, "direction": direction, **({"clip": 1.0} if draw.chance(0.3) else {})}
    constants = frozenset({"w", "r"} | _parameters("w", "r"))
    return Case("DynamicQuantizeLSTM", operands, attributes, ("y", "h1", "c1"), constants, tolerance=5e-3)


def _quantize(draw: Draw) -> Case:
    dtype = draw.pick("int8", "uint8", "int16", "uint16")
    return Case("QuantizeLinear", {"x": draw.real(3, 4), **_quantization(draw, "y", dtype)})


def _dequantize(draw: Draw) -> Case:
    return Case("DequantizeLinear", _operand(draw, "x", draw.pick("int8", "uint8", "int16", "uint16"), (3, 4)))


_IMAGE = (2, 3, 6, 7)

CASES: Mapping[str, Callable[[Draw], Case]] = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLSTM": _lstm,
    "DynamicQuantizeMatMul": _dynamic_product,
    "MatMulInteger16": _wide_product,
    "MatMulIntegerToFloat": _integer_product,
    "QGemm": _gemm,
    "QLinearAdd": _binary("QLinearAdd"),
    "QLinearAveragePool": _unary("QLinearAveragePool", _pool_attributes, _IMAGE, 0.05),
    "QLinearConcat": _concat,
    "QLinearConv": _convolution,
    "QLinearGlobalAveragePool": _unary(
        "QLinearGlobalAveragePool", lambda draw: {"channels_last": draw.count(0, 1)}, _IMAGE, 0.05
    ),
    "QLinearLeakyRelu": _unary("QLinearLeakyRelu", lambda _: {"alpha": 0.1}, _IMAGE, 0.05),
    "QLinearMul": _binary("QLinearMul"),
    "QLinearSigmoid": _unary("QLinearSigmoid", lambda _: {}, _IMAGE, 0.004),
    "QLinearSoftmax": _unary(
        "QLinearSoftmax", lambda draw: {"axis": draw.count(-3, 3), "opset": draw.pick(11, 13)}, _IMAGE, 0.004
    ),
    "QLinearWhere": _where,
    "QuantizeLinear": _quantize,
}
"""A random node of each operator."""
