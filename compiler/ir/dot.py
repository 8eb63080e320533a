"""Chooses how to use a machine's dot-product instruction for two factor types.

A byte of one signedness becomes one of the other by flipping its highest bit, which shifts it by 128. With such a
factor x' the sum is Σ x y = Σ x' y - Σ c y, where c is the flipped bit: 128 unsigned, -128 signed.
"""

from collections.abc import Collection

Pair = tuple[str, str]

BYTES = ("int8", "uint8")
OTHER_SIGN = {"int8": "uint8", "uint8": "int8"}


def in_order(native: Collection[Pair], one: str, other: str) -> bool | None:
    """Whether the machine takes `one` as its first factor; None when it takes the two in no order."""
    if (one, other) in native:
        return True
    return False if (other, one) in native else None


def is_possible(native: Collection[Pair], one: str, other: str) -> bool:
    """Whether the machine takes the two, or would take them with the sign of one turned."""
    turned = ((OTHER_SIGN.get(one, one), other), (one, OTHER_SIGN.get(other, other)))
    return any(in_order(native, *pair) is not None for pair in ((one, other), *turned))
