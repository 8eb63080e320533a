"""The layout in which a schedule reads a constant, and the options for rewriting it.

A layout is text such as `4j8j512k4j`: the digits of the indices, slowest first, each with its extent and its axis.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from retune.compiler.core.errors import ScheduleError
from retune.compiler.core.target import Target
from retune.compiler.ir.expr import Expr


class LayoutRewriteOption(IntEnum):
    """What happens to the inputs of free layout (`layout_free_placeholders`). The numbers are those of logs.

    NO_REWRITE reads them in their own layout. INSERT_TRANSFORM_STAGE rewrites them in every call, which suits a single
    operator. REWRITE_FOR_PRE_TRANSFORMED expects them rewritten beforehand, which suits the constants of a network.
    """

    NO_REWRITE = 0
    INSERT_TRANSFORM_STAGE = 1
    REWRITE_FOR_PRE_TRANSFORMED = 2

    @staticmethod
    def get_target_default(target: Target, in_relay_integration: bool = False) -> "LayoutRewriteOption":
        """The default of a target: CPUs rewrite, and networks (`in_relay_integration`) rewrite beforehand."""
        if not target.traits.rewrites_layouts:
            return LayoutRewriteOption.NO_REWRITE
        if in_relay_integration:
            return LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED
        return LayoutRewriteOption.INSERT_TRANSFORM_STAGE


@dataclass(frozen=True, slots=True)
class Digit:
    """One dimension of a layout: a digit, of `extent` values, of the index along `axis`."""

    extent: int
    axis: str


Digits = tuple[Digit, ...]


def layout_text(digits: Sequence[Digit]) -> str:
    """`Digit(4, "j"), Digit(512, "k")` as `4j512k`."""
    return "".join(f"{digit.extent}{digit.axis}" for digit in digits)


def parse_layout(text: str, axes: Sequence[str]) -> Digits:
    """The digits of a string, whose axes are among `axes`. Raises: ScheduleError for any other text."""
    # Longest first: the name of an axis may begin with that of another.
    names = "|".join(re.escape(name) for name in sorted(axes, key=len, reverse=True))
    pattern = re.compile(rf"(\d+)({names})(?=\d|$)")
    digits: list[Digit] = []
    position = 0
    while axes and (match := pattern.match(text, position)):
        digits.append(Digit(int(match[1]), match[2]))
        position = match.end()
    if position != len(text) or not digits:
        remaining = repr(text[position:])
        raise ScheduleError(f"the layout {text!r} cannot be read from {remaining} on; its axes are {', '.join(axes)}")
    return tuple(digits)


def get_shape_from_rewritten_layout(rewritten_layout: str, axis_names: Sequence[str]) -> tuple[int, ...]:
    """The shape before the rewrite: along each of the axes, the product of its digits.

    Raises: ScheduleError when the text has other axes, or an axis is missing or named twice.
    """
    if len(set(axis_names)) != len(axis_names):
        raise ScheduleError(f"the axes of the layout {rewritten_layout!r} must differ, got {', '.join(axis_names)}")
    digits = parse_layout(rewritten_layout, axis_names)
    for name in axis_names:
        if all(digit.axis != name for digit in digits):
            raise ScheduleError(f"the layout {rewritten_layout!r} has no axis {name}")
    return tuple(math.prod(digit.extent for digit in digits if digit.axis == name) for name in axis_names)


def digit_values(digits: Digits, indices: Mapping[str, Expr]) -> tuple[Expr, ...]:
    """The digits of the `indices` of each axis: the index of an element in the new layout."""
    strides: dict[str, int] = {}
    values: list[Expr] = []
    for index in range(len(digits) - 1, -1, -1):
        digit = digits[index]
        value = indices[digit.axis] // strides.get(digit.axis, 1)
        # The outermost digit of an axis is a quotient alone.
        if any(outer.axis == digit.axis for outer in digits[:index]):
            value = value % digit.extent
        values.append(value)
        strides[digit.axis] = strides.get(digit.axis, 1) * digit.extent
    return tuple(reversed(values))


def index_values(digits: Digits, values: Sequence[Expr], axes: Sequence[str]) -> tuple[Expr, ...]:
    """The indices along `axes` of the element with the digits `values`, the inverse of `digit_values`."""
    totals: dict[str, Expr] = {}
    for digit, value in zip(digits, values, strict=True):
        totals[digit.axis] = totals[digit.axis] * digit.extent + value if digit.axis in totals else value
    return tuple(totals[axis] for axis in axes)
