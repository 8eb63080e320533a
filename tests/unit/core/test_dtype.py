"""Element types that a file names: numbers by their names, and nothing else."""

import pytest

from retune.compiler.core.dtype import number_type


def test_numbers_have_their_names() -> None:
    assert [number_type(name) for name in ("float32", "bfloat16", "bool", "uint8")] == [
        "float32",
        "bfloat16",
        "bool",
        "uint8",
    ]


@pytest.mark.parametrize("name", ["a", "a5", "str", "object", "", "float 32", "x" * 40, None, 4])
def test_what_is_no_number_is_refused_without_a_warning(name: object) -> None:
    with pytest.raises(ValueError, match="is no element type"):
        number_type(name)
