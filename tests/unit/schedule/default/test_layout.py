"""Layouts as text, and what is usual for a target."""

import numpy as np
import pytest

from retune.compiler.core.errors import ScheduleError
from retune.compiler.core.target import Target
from retune.compiler.ir.expr import Const, Expr, const
from retune.compiler.schedule.default.layout import (
    Digit,
    LayoutRewriteOption,
    digit_values,
    get_shape_from_rewritten_layout,
    index_values,
    layout_text,
    parse_layout,
)


def test_a_text_is_read_as_it_was_written() -> None:
    digits = (Digit(4, "j"), Digit(8, "j"), Digit(512, "k"), Digit(4, "j"))
    assert layout_text(digits) == "4j8j512k4j"
    assert parse_layout("4j8j512k4j", ["k", "j"]) == digits


def test_names_with_digits_in_them_are_told_apart() -> None:
    digits = (Digit(12, "i1"), Digit(3, "i11"), Digit(2, "i0"))
    assert parse_layout(layout_text(digits), ["i0", "i1", "i11"]) == digits


def test_the_shape_before_the_rewrite() -> None:
    assert get_shape_from_rewritten_layout("4j8j4j4j512k", ["k", "j"]) == (512, 512)
    assert get_shape_from_rewritten_layout("1ry3rx4rc2ff1rc8ff", ["ry", "rx", "rc", "ff"]) == (1, 3, 4, 16)


@pytest.mark.parametrize(
    ("text", "axes"),
    [("4j8q", ["j"]), ("4j", ["j", "k"]), ("", ["j"]), ("j4", ["j"]), ("4j8", ["j"]), ("4j2j", ["j", "j"]), ("4", [])],
)
def test_what_does_not_fit_is_refused(text: str, axes: list[str]) -> None:
    with pytest.raises(ScheduleError, match="layout"):
        get_shape_from_rewritten_layout(text, axes)


def test_digits_and_indices_are_inverse() -> None:
    digits = parse_layout("2j3k4j5k", ["k", "j"])
    seen = set()
    for k in range(15):
        for j in range(8):
            place = digit_values(digits, {"k": const(k), "j": const(j)})
            seen.add(tuple(_number(value) for value in place))
            assert tuple(map(_number, index_values(digits, place, ["k", "j"]))) == (k, j)
    assert seen == set(np.ndindex(2, 3, 4, 5))


def _number(value: Expr) -> int:
    assert isinstance(value, Const)
    return int(value.value)


def test_what_is_usual_for_a_target() -> None:
    default = LayoutRewriteOption.get_target_default
    assert default(Target.host()) is LayoutRewriteOption.INSERT_TRANSFORM_STAGE
    assert default(Target.host(), True) is LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED
    assert default(Target("cuda"), True) is LayoutRewriteOption.NO_REWRITE
    assert [int(option) for option in LayoutRewriteOption] == [0, 1, 2]
