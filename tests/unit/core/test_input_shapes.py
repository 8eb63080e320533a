"""Shapes as text: numbers, ranges, symbols, and what is wrong with others."""

from pathlib import Path

import pytest

from retune.compiler.core.errors import OptionError
from retune.compiler.core.input_shapes import Size, fixed_shapes, has_sizes, parse_shape, parse_shapes, read_shapes


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


def test_an_input_has_no_two_shapes() -> None:
    with pytest.raises(OptionError, match="two shapes are given for x: give one"):
        parse_shapes(["x=1..8,4", "y=1", "x=1..4,4"])


def test_fixed_shapes_take_no_ranges() -> None:
    assert fixed_shapes(["x=1,2", "y="], "tuning") == {"x": (1, 2), "y": ()}
    with pytest.raises(OptionError, match=r"tuning takes fixed shapes, not a range for x: write x=1,3,224,224"):
        fixed_shapes(["x=1..2,2"], "tuning")


def test_shapes_of_a_file_have_weights(tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text('[{"shapes": {"ids": [1, 128], "scale": []}, "weight": 3}, {"shapes": {"ids": [2, 5]}}]')
    first, second = read_shapes(str(path))
    assert (first.shapes, first.weight) == ({"ids": (1, 128), "scale": ()}, 3.0)
    assert (second.shapes, second.weight, second.where) == ({"ids": (2, 5)}, 1.0, f"{path}, entry 1")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[", "is not JSON: Expecting value"),
        ("[" * 100_000, "is not JSON"),
        ("\udcff", "is not JSON"),
        ("{}", "has no list of shapes; write"),
        ("[]", "has no list of shapes"),
        ('[{"ids": [1, 2]}]', "entry 0 has no shapes by input; write"),
        ('[{"shapes": {}}]', "entry 0 has no shapes by input"),
        ("[[1, 2]]", "entry 0 has no shapes by input"),
        ('[{"shapes": {"ids": [1]}, "wieght": 2}]', "entry 0 has the key 'wieght', which says nothing"),
        *(
            (f'[{{"shapes": {{"ids": [1]}}, "weight": {weight}}}]', "entry 0: the weight must be a number above 0")
            for weight in ("0", "-1", "true", '"3"', "1e999", "NaN")
        ),
        ('[{"shapes": {"ids": [1.5]}}]', "a shape is a list of integers; 1.5 is not an integer"),
        ('[{"shapes": {"ids": 4}}]', "a shape is a list of integers"),
        ('[{"shapes": {"ids": [1, 0]}}]', r"the shape \[1, 0\] of ids must have extents from 1 to 999999999"),
    ],
)
def test_a_file_without_shapes_is_refused_in_one_sentence(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(OptionError, match=error) as caught:
        read_shapes(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_file_of_shapes_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"cannot read the shapes in .*none\.json: No such file"):
        read_shapes(str(tmp_path / "none.json"))
