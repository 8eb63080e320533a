"""Random nodes of contributed operators on weights of a few bits."""

from collections.abc import Callable, Mapping

import numpy as np

from tests.support.contributed.case import Case, Draw, Operands


def _matmul(draw: Draw) -> Case:
    """All forms of zero points, with blocks that end beyond the rows of the weights."""
    bits, block = draw.pick(2, 4, 8), draw.pick(16, 32, 64, 128)
    depth, columns = draw.pick(draw.count(1, 300), 256), draw.count(1, 90)
    blocks = -(-depth // block)
    rows = draw.pick((1,), (7,), (2, 3), (1, 1))
    operands: Operands = {
        "a": draw.real(*rows, depth),
        "b": draw.stored("uint8", columns, blocks, block * bits // 8),
        "scales": draw.scale(columns, blocks),
    }
    zeros, bias, grouped = draw.pick("none", "packed", "floats"), draw.chance(0.3), draw.chance(0.2)
    # ONNX Runtime 1.32 reads other zero points where rows have groups.
    grouped = grouped and bits == 4 and zeros != "packed"
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": block}
    if zeros == "packed":
        operands["zeros"] = draw.stored("uint8", columns, -(-blocks * bits // 8))
    elif zeros == "floats":
        operands["zeros"] = draw.scale(columns, blocks, high=1 << bits)
    if grouped or bias:
        operands["zeros"] = operands.get("zeros")
        operands["groups"] = draw.rng.integers(0, blocks, depth).astype("int32") if grouped else None
    if bias:
        operands["bias"] = draw.real(columns)
    constants = frozenset({"b", "scales", "zeros", "groups"})
    return Case("MatMulNBits", operands, {**attributes, "accuracy_level": draw.count(0, 1)}, constants=constants)


def _gather(draw: Draw) -> Case:
    """Packed bytes or integers below a byte, gathered along any axis."""
    dtype = draw.pick("uint8", "int4", "uint4")
    block = draw.pick(16, 32)
    last = block * draw.count(1, 3)
    indices = draw.rng.integers(-5, 5, draw.pick((3,), (2, 2))).astype(draw.pick("int32", "int64"))
    scale = draw.scale(5, 3, last // block)
    if dtype == "uint8":
        bits = draw.pick(4, 8)
        data = draw.stored("uint8", 5, 3, last * bits // 8)
        zero = draw.stored("uint8", 5, 3, -(-last // block * bits // 8)) if (last // block * bits) % 8 == 0 else None
        attributes = {"gather_axis": 0, "quantize_axis": 2, "bits": bits}
    else:
        data, zero = (
            draw.rng.integers(0, 8, shape).astype("int8").astype(dtype) for shape in ((5, 3, last), scale.shape)
        )
        attributes = {"gather_axis": 0, "quantize_axis": 2}
    operands: Operands = {"data": data, "indices": indices, "scales": scale}
    if zero is not None and draw.chance():
        operands["zeros"] = np.asarray(zero)
    constants = frozenset({"data", "scales", "zeros"})
    return Case("GatherBlockQuantized", operands, {**attributes, "block_size": block}, constants=constants, opset=21)


CASES: Mapping[str, Callable[[Draw], Case]] = {"GatherBlockQuantized": _gather, "MatMulNBits": _matmul}
