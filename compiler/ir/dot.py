"""Chooses how to use a machine's dot-product instruction for two factor types.

Flipping the highest bit of a byte changes its signedness and shifts it by 128. With such a factor x' the sum is Σ x y =
Σ x' y - Σ c y, where c is the flipped bit: 128 unsigned, -128 signed.
"""

from collections.abc import Collection

Pair = tuple[str, str]

BYTES = ("int8", "uint8")
WIDENED = "int16"
"""The type that bytes are widened to where a machine has no products of bytes: it holds both kinds."""
OTHER_SIGN = {"int8": "uint8", "uint8": "int8"}


def in_order(native: Collection[Pair], lhs: str, rhs: str) -> bool | None:
    """Whether the machine takes `lhs` as its first factor; None when it takes the pair in no order."""
    if (lhs, rhs) in native:
        return True
    return False if (rhs, lhs) in native else None


def is_possible(native: Collection[Pair], lhs: str, rhs: str) -> bool:
    """Whether the machine multiplies the pair: as it is, widened, or with the signedness of one factor flipped."""
    if are_widened(native, lhs, rhs):
        return True
    turned = ((OTHER_SIGN.get(lhs, lhs), rhs), (lhs, OTHER_SIGN.get(rhs, rhs)))
    return any(in_order(native, *pair) is not None for pair in ((lhs, rhs), *turned))


def are_widened(native: Collection[Pair], lhs: str, rhs: str) -> bool:
    """Whether both are bytes that the machine multiplies as 16-bit numbers."""
    return (WIDENED, WIDENED) in native and lhs in BYTES and rhs in BYTES


def products_per_sum(native: Collection[Pair], lhs: str, rhs: str) -> int:
    """The products of the pair that an instruction adds to a sum of 32 bits."""
    return 4 if lhs in BYTES and rhs in BYTES and not are_widened(native, lhs, rhs) else 2
