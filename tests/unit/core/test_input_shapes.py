"""Shapes as text: numbers, ranges, symbols, and what is wrong with others."""

import pytest

from retune.compiler.core.errors import OptionError
from retune.compiler.core.input_shapes import Size, fixed_shapes, has_sizes, parse_shape


def test_a_shape_as_text_may_be_a_scalar_or_have_no_elements() -> None:
    assert parse_shape("scale=") == ("scale", ())
    assert parse_shape("a=b=0, 4") == ("a=b", (0, 4))


def test_an_extent_is_a_number_a_range_a_symbol_or_any_size() -> None:
    _, extents = parse_shape("ids=3, 1..8, n, n:1..512, ?, 4..4")
    assert extents == (3, Size("", 1, 8), Size("n"), Size("n", 1, 512), Size(), 4)
    assert has_sizes(["x=1", "ids=1,0..8"])
    assert not has_sizes(["x=1", "ids=1,4..4"])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        *((text, "cannot read the shape") for text in ("x", "=1", "x=-1", "x=1,", "x=1..", "x=1..2..3", "x=a b:1..2")),
        ("ids=1,8..1", r"dimension 1 of ids: the range 8\.\.1 is empty; did you mean 1\.\.8\?"),
        ("ids=-1..8", r"dimension 0 of ids: the range -1\.\.8 is negative"),
        ("ids=1..9999999999", "beyond the 999999999"),
    ],
)
def test_what_is_no_shape_is_refused_in_one_sentence(text: str, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        parse_shape(text)


def test_fixed_shapes_take_no_ranges() -> None:
    assert fixed_shapes(["x=1,2", "y="], "tuning") == {"x": (1, 2), "y": ()}
    with pytest.raises(OptionError, match=r"tuning takes fixed shapes, not 'x=1\.\.2,2'"):
        fixed_shapes(["x=1..2,2"], "tuning")
