"""Definitions that make no sense are refused at once and in words."""

# mypy: disable-error-code="arg-type,call-overload,index,list-item"
# what the types forbid is tried here

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import DefinitionError
from retune.compiler.schedule.dag import ComputeDAG

# ruff: noqa: ARG005 - bodies that ignore their index

X = te.placeholder((10,), name="x")
TABLE = te.placeholder((4, 6), name="table")
K = te.reduce_axis(10, "k")


@pytest.mark.parametrize(
    "shape",
    [(-1,), (0,), (3, 0), (1.5,), (float("nan"),), (float("inf"),), (True,), ("3",), ((1,),), (None,), 5, "33", None],
)
def test_a_shape_is_a_list_of_positive_whole_numbers(shape: Any) -> None:
    with pytest.raises(DefinitionError, match="integers"):
        te.placeholder(shape, name="a")
    with pytest.raises(DefinitionError, match="integers"):
        te.compute(shape, lambda *_: 1.0, "b")


@pytest.mark.parametrize("extent", [-1, 0, 2.0, float("nan"), None, "7", True])
def test_extent_of_a_reduce_axis_is_a_positive_integer(extent: Any) -> None:
    with pytest.raises(DefinitionError, match="positive integers"):
        te.reduce_axis(extent)


def test_a_tensor_larger_than_any_memory() -> None:
    with pytest.raises(DefinitionError, match="no memory holds a tensor"):
        te.placeholder((1 << 40, 1 << 40))
    with pytest.raises(DefinitionError, match="no memory holds a tensor"):
        te.compute((1 << 31, 1 << 31), lambda i, j: 1.0)


def test_shapes_take_numpy_integers() -> None:
    assert te.placeholder((np.int64(3), 4), np.float64).shape == (3, 4)
    assert te.placeholder((3,), np.dtype("int8")).dtype == "int8"


@pytest.mark.parametrize("dtype", ["float31", "complex64", "object", "str", ">f4", "float128", "", None, 3, complex])
def test_an_element_type_is_a_known_one(dtype: Any) -> None:
    with pytest.raises(DefinitionError, match="there is no element type"):
        te.placeholder((3,), dtype)
    with pytest.raises(DefinitionError, match="there is no element type"):
        te.cast(dtype, X[0])


@pytest.mark.parametrize("name", ["", "a\nb", "\x00", "tab\t", None, 3, b"x"])
def test_a_name_is_printable(name: Any) -> None:
    for define in (
        lambda: te.placeholder((3,), name=name),
        lambda: te.compute((3,), lambda i: X[i], name),
        lambda: te.reduce_axis(3, name),
    ):
        with pytest.raises(DefinitionError, match="cannot be called"):
            define()


Body = Callable[..., Any]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda i: None, "None is neither an expression nor a number"),
        (lambda i: "x", "'x' is neither an expression nor a number"),
        (lambda i, j: 1.0, "takes 2 indices but the shape has 1"),
        (5, "no function of the indices"),
        (lambda i: X[i, i], "x has 1 dimensions but is read with 2"),
        (lambda i: X[i * 0.5], "which is float32; cast it to an integer"),
        (lambda i: X[0.5], "which is float32; cast it to an integer"),
        (lambda i: X[i < 2], "which is bool; cast it to an integer"),
        (lambda i: X[None], "None is neither"),
        (lambda i: X[1:2], "slice"),
        (lambda i: X[i] if i < 3 else X[0], "no truth value in Python"),
        (lambda i: next(iter(X)), "x cannot be iterated over"),
        (lambda i: te.exp(i), "exp of i, which is int64; cast it to a float first"),
        (lambda i: te.if_then_else(X[i], 1.0, 2.0), r"x\[i\] is a float32, no condition"),
        (lambda i: te.logical_and(i < 3, X[i]), "no condition"),
        (lambda i: te.logical_or(i, i < 3), "no condition"),
        (lambda i: te.logical_not(X[i]), "no condition"),
        (lambda i: X[i] << 2, "no bits to work on"),
        (lambda i: te.pow(i, 3), "pow of i, which is int64; cast it to a float first"),
        (lambda i: (X[i] > 0) * 2, "2 is no bool; cast"),
        (lambda i: (X[i] > 0) - (X[i] > 1), "bools have no such operator; cast to an integer"),
        (lambda i: te.sum(X[i], i), "i is not a reduce axis"),
        (lambda i: te.sum(X[K], 3), "3 is not a reduce axis"),
        (lambda i: te.sum(X[K], [3]), "3 is not a reduce axis"),
        (lambda i: X[K], "the body uses the axis k"),
    ],
)
def test_body_of_a_wrong_type_is_refused(body: Body, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        te.compute((10,), body, "y")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda i: X[i + 5], r"y: index 0 of x\[\(i \+ 5\)\] runs from 5 to 14, outside of 0 .. 9"),
        (lambda i: X[i * 2 - 1], "from -1 to 17"),
        (lambda i: X[10], "from 10 to 10"),
        (lambda i: X[i * 2 - i + 1], "from 1 to 10"),
        (lambda i: X[12 - i], "from 3 to 12"),
        (lambda i: TABLE[i // 2, 0], "from 0 to 4"),
        (lambda i: TABLE[0, (i + 6) % 20 - 6], "index 1 .* from 0 to 9"),
        (lambda i: te.sum(X[i + K], K), "from 0 to 18"),
        (lambda i: te.if_then_else(X[i + 1] > 0.0, 1.0, 0.0), "from 1 to 10"),
        (lambda i: X[i * i], "from 0 to 81"),
        (lambda i: X[(i % 3) * 4 + i // 3], "from 0 to 10"),
        (lambda i: X[te.cast("int64", te.cast("int8", i * 100))], "from -124 to 100"),
    ],
)
def test_a_read_that_certainly_lies_outside(body: Body, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        te.compute((10,), body, "y")


@pytest.mark.parametrize(
    "body",
    [
        lambda i: X[9 - i],
        lambda i: X[i - i // 2],
        lambda i: X[i // 2 * 2 + i % 2],
        lambda i: X[(i * 7) % 10],
        lambda i: te.if_then_else(i < 5, X[i + 5], 0.0),
        lambda i: TABLE[i % 4, te.cast("int64", X[i]) % 6],
    ],
)
def test_reads_that_may_be_inside_are_accepted(body: Body) -> None:
    assert te.compute((10,), body, "y").shape == (10,)


@pytest.mark.parametrize("tensors", [None, 3, [1], [X, None], X])
def test_a_graph_is_made_of_tensors(tensors: Any) -> None:
    with pytest.raises(DefinitionError, match="list of tensors"):
        ComputeDAG(tensors)


def test_a_graph_lists_a_tensor_once() -> None:
    with pytest.raises(DefinitionError, match="listed twice among x, x, y"):
        ComputeDAG([X, X, te.compute((10,), lambda i: X[i], "y")])


def test_attributes_have_names() -> None:
    with pytest.raises(DefinitionError, match="must be a mapping"):
        te.compute((10,), lambda i: X[i], "y", 5)
