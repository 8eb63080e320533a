"""Register values of PTX types, and the results of PTX instructions without side effects.

A register has 64 bits; a narrower type takes the lowest.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.ptx.program import Instruction, PtxError

Bits = NDArray[np.uint64]
Numbers = NDArray[Any]
Mask = NDArray[np.bool_]

TYPES: dict[str, type[np.generic]] = {
    **{f"{letter}{bits}": getattr(np, f"uint{bits}") for letter in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": getattr(np, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": getattr(np, f"float{bits}") for bits in (16, 32, 64)},
}
_WIDER: dict[str, type[np.generic]] = {"f16": np.float32, "f32": np.float64}
_HALVER = np.longdouble(2.0**37 + 1)
"""In 64 bits of precision a float64 times this tells its upper 27 bits from the others."""


def size_of(kind: str) -> int:
    """Bytes of a type."""
    return np.dtype(TYPES[kind]).itemsize


def numbers(bits: Bits, kind: str) -> Numbers:
    """What bits mean."""
    dtype = np.dtype(TYPES[kind])
    return np.asarray(bits.astype(f"uint{8 * dtype.itemsize}").view(dtype))


def bits_of(values: Numbers) -> Bits:
    """How numbers lie in registers."""
    values = np.ascontiguousarray(values)
    return np.asarray(values.view(f"uint{8 * values.itemsize}").astype(np.uint64))


def from_bfloat16(bits: Numbers) -> NDArray[np.float32]:
    """The numbers that bfloat16 stand for."""
    return np.asarray((bits.astype(np.uint32) << np.uint32(16)).view(np.float32))


def to_bfloat16(values: NDArray[np.float32]) -> Bits:
    """The nearest bfloat16, even ones between two."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    return np.where(np.isnan(values), np.uint64(0x7FFF), rounded)


def to_tf32(values: NDArray[np.float32]) -> Bits:
    """The nearest numbers of 10 bits of fraction, away from zero between two."""
    bits = values.view(np.uint32).astype(np.uint64)
    return np.where(np.isfinite(values), (bits + np.uint64(0x1000)) & np.uint64(0xFFFFE000), bits)


def compared(how: str, one: Numbers, other: Numbers) -> Mask:
    """A comparison; those whose names end in u hold for NaN too."""
    known: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
    }
    torn = np.isnan(one) | np.isnan(other) if one.dtype.kind == "f" else np.zeros(one.shape, np.bool_)
    if how in ("nan", "num"):
        return torn == (how == "nan")
    holds = np.asarray(known[how.removesuffix("u")](one, other))
    return holds | torn if how.endswith("u") else holds & ~torn


def converted(instruction: Instruction, given: Sequence[Bits]) -> Bits:
    """What `cvt` makes of its arguments."""
    *modes, target, source = instruction.parts[1:]
    values = [from_bfloat16(bits) if source == "bf16" else numbers(bits, source) for bits in given]
    if len(values) == 2:
        high, low = (_narrowed(value, target.removesuffix("x2")) for value in values)
        return high << np.uint64(16) | low
    (value,) = values
    if target in ("bf16", "tf32"):
        return _narrowed(value, target)
    for mode in modes:
        if mode not in _ROUNDINGS:
            raise PtxError(f"unknown: {instruction.text}")
        value = _ROUNDINGS[mode](value)
    if target[0] in "su" and value.dtype.kind == "f":
        # NaN becomes 0, and what is too large the nearest number; in longdouble every integer is exact.
        limits = np.iinfo(np.dtype(TYPES[target]))
        value = np.clip(np.nan_to_num(value.astype(np.longdouble)), limits.min, limits.max)
    found = value.astype(TYPES[target])
    # What has a sign fills up a wider register with it.
    return bits_of(found.astype(np.int64) if target.startswith("s") else found)


_ROUNDINGS: dict[str, Callable[[Numbers], Numbers]] = {
    "rn": lambda value: value,
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
    "sat": lambda value: np.clip(np.nan_to_num(value), 0, 1),
}


def _narrowed(value: Numbers, kind: str) -> Bits:
    if kind == "bf16":
        return to_bfloat16(value)
    return to_tf32(value) if kind == "tf32" else bits_of(value.astype(TYPES[kind]))


def computed(instruction: Instruction, given: Sequence[Bits]) -> Bits:
    """What an instruction of arithmetic or logic makes of its arguments."""
    name, kind = instruction.parts[0], instruction.kind
    if kind == "f16x2":
        return _in_halves(instruction, given)
    if name in ("shl", "shr"):
        return _shifted(name, numbers(given[0], kind), given[1], 8 * size_of(kind))
    if "wide" in instruction.parts or "hi" in instruction.parts:
        return _long_product(instruction, given)
    values = [numbers(bits, kind) for bits in given]
    if "ftz" in instruction.parts:
        values = [_flushed(value) for value in values]
    if "approx" in instruction.parts:
        found = _upper_half_of(name, values[0]) if kind == "f64" else _rounded(_PLAIN[name](*_doubled(values)), "rz")
        return bits_of(_flushed(found) if "ftz" in instruction.parts else found)
    directed = [mode for mode in instruction.parts if mode in ("rz", "rm", "rp")]
    if directed and (name, kind) in (("fma", "f32"), ("add", "f32")):
        return bits_of(_rounded(_fused(*_doubled(values)) if name == "fma" else np.add(*_doubled(values)), directed[0]))
    if directed:
        raise PtxError(f"unknown: {instruction.text}")
    if name == "fma" and kind == "f64":
        return bits_of(_fused(*values))
    if name == "clz":
        return np.array([8 * size_of(kind) - int(value).bit_length() for value in values[0]], np.uint64)
    if name == "prmt":
        return _permuted(*given)
    if name == "shf":
        return _funnel(instruction, given)
    if name in ("fma", "mad"):
        wide = _WIDER.get(kind, TYPES[kind])
        one, other, addend = (value.astype(wide) for value in values)
        return bits_of((one * other + addend).astype(TYPES[kind]))
    if name == "bfe":
        return _field(values[0], int(given[1][0]), int(given[2][0]))
    if "NaN" in instruction.parts:
        name += ".NaN"
    if name not in _PLAIN:
        raise PtxError(f"unknown: {instruction.text}")
    return bits_of(np.asarray(_PLAIN[name](*values)).astype(TYPES[kind]))


_PLAIN: dict[str, Callable[..., Numbers]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": lambda one, other: one / other if one.dtype.kind == "f" else _quotient(one, other),
    "rem": lambda one, other: one - _quotient(one, other) * other,
    "rcp": lambda value: 1 / value,
    "rsqrt": lambda value: 1 / np.sqrt(value),
    "sqrt": np.sqrt,
    "ex2": np.exp2,
    "neg": np.negative,
    "abs": np.abs,
    "max": np.fmax,
    "min": np.fmin,
    "max.NaN": np.maximum,
    "min.NaN": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "popc": np.bitwise_count,
    "copysign": lambda sign, size: np.copysign(size, sign),
}


def _doubled(values: Sequence[Numbers]) -> list[Numbers]:
    return [value.astype(np.float64) for value in values]


def _flushed(value: Numbers) -> Numbers:
    """`ftz`: zeros in place of subnormal numbers."""
    return np.where(np.abs(value) < np.finfo(value.dtype).smallest_normal, value * value.dtype.type(0), value)


def _rounded(exact: Numbers, mode: str) -> NDArray[np.float32]:
    """float64 as float32, towards zero, down or up. Approximations are rounded towards zero: up to one ulp off, which
    is what NVIDIA promises of most.
    """
    near = exact.astype(np.float32)
    towards = {"rz": 0.0, "rm": -np.inf, "rp": np.inf}[mode]
    wide = near.astype(np.float64)
    beyond = {"rz": np.abs(wide) > np.abs(exact), "rm": wide > exact, "rp": wide < exact}[mode]
    beyond &= np.isfinite(exact)
    return np.where(beyond, np.nextafter(near, np.float32(towards)), near)


def _upper_half_of(name: str, value: NDArray[np.float64]) -> NDArray[np.float64]:
    """Approximations of float64 read the upper 32 bits of a number, and compute those of the result."""
    mask = np.uint64(0xFFFFFFFF << 32)
    found = np.asarray(_PLAIN[name]((value.view(np.uint64) & mask).view(np.float64)), np.float64)
    return np.where(np.isnan(value), value, (found.view(np.uint64) & mask).view(np.float64))


def _quotient(one: Numbers, other: Numbers) -> Numbers:
    """Of integers, rounded towards zero; by zero it is nothing that anybody may count on."""
    down = one // np.where(other == 0, 1, other)
    lost = (down * other != one) & ((one < 0) != (other < 0))
    return np.where(other == 0, 0x5A, down + lost.astype(down.dtype)).astype(one.dtype)


def _fused(one: Numbers, other: Numbers, addend: Numbers) -> Numbers:
    """A product and a sum, exact where a float64 can be: all that is lost is summed up apart, in more bits."""
    wide = [value.astype(np.longdouble) for value in (one, other)]
    upper = [value * _HALVER - (value * _HALVER - value) for value in wide]
    lower = [value - part for value, part in zip(wide, upper, strict=True)]
    product = wide[0] * wide[1]
    lost = upper[0] * upper[1] - product + upper[0] * lower[1] + lower[0] * upper[1] + lower[0] * lower[1]
    total = product + addend
    back = total - product
    lost = lost + ((product - (total - back)) + (addend - back))
    # -0 + 0 would be 0.
    return np.where(np.isfinite(total) & np.isfinite(lost) & (lost != 0), total + lost, total).astype(np.float64)


def _funnel(instruction: Instruction, given: Sequence[Bits]) -> Bits:
    """`shf`: the upper or lower word of two that are shifted as one."""
    if instruction.parts[2:] != ("wrap", "b32"):
        raise PtxError(f"unknown: {instruction.text}")
    low, high, count = (bits & np.uint64(0xFFFFFFFF) for bits in given)
    count, word = count & np.uint64(31), np.uint64(32)
    both = high << word | low
    shifted = both << count >> word if instruction.parts[1] == "l" else both >> count
    return shifted & np.uint64(0xFFFFFFFF)


def _in_halves(instruction: Instruction, given: Sequence[Bits]) -> Bits:
    """The same for both halves of words."""
    half = replace(instruction, parts=(*instruction.parts[:-1], "f16"))
    low, high = (computed(half, [bits >> np.uint64(start) for bits in given]) for start in (0, 16))
    return high << np.uint64(16) | low


def _permuted(low: Bits, high: Bits, chosen: Bits) -> Bits:
    """`prmt`: four bytes of two words, each by its number; with the highest bit of that only its sign, everywhere."""
    both, found = high << np.uint64(32) | low & np.uint64(0xFFFFFFFF), np.zeros_like(low)
    for place in range(4):
        number = chosen >> np.uint64(4 * place)
        byte = both >> (np.uint64(8) * (number & np.uint64(7))) & np.uint64(0xFF)
        sign = np.where(byte >> np.uint64(7) != 0, np.uint64(0xFF), np.uint64(0))
        found |= np.where(number & np.uint64(8) != 0, sign, byte) << np.uint64(8 * place)
    return found


def _shifted(name: str, value: Numbers, count: Bits, width: int) -> Bits:
    """Shifts by the width and more leave nothing, or the sign."""
    places = np.minimum(count & np.uint64(0xFFFFFFFF), np.uint64(width))
    below = np.minimum(places, np.uint64(width - 1)).astype(value.dtype)
    if name == "shl":
        return bits_of(np.where(places == width, 0, value << below).astype(value.dtype))
    gone = (places == width) & (value.dtype.kind != "i")
    return bits_of(np.where(gone, 0, value >> below).astype(value.dtype))


def _long_product(instruction: Instruction, given: Sequence[Bits]) -> Bits:
    """Products in twice the width: all of them, or the upper half."""
    kind, width = instruction.kind, 8 * size_of(instruction.kind)
    one, other = ([int(value) for value in numbers(bits, kind)] for bits in given[:2])
    products = [first * second for first, second in zip(one, other, strict=True)]
    if "hi" in instruction.parts:
        return np.array([product >> width & (1 << width) - 1 for product in products], np.uint64)
    wide = np.array([product & (1 << 2 * width) - 1 for product in products], np.uint64)
    return wide + given[2] if len(given) == 3 else wide


def _field(value: Numbers, start: int, length: int) -> Bits:
    """So many bits from a place on; of signed ones the highest is the sign."""
    above = 8 * value.itemsize - start - length
    return bits_of(value << value.dtype.type(above) >> value.dtype.type(above + start))
