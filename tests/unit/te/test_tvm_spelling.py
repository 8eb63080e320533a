"""Tensor expressions in TVM's spelling: step-by-step indexing, calls, arithmetic of tensors, tags and attributes."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.driver.build import build
from retune.compiler.errors import DefinitionError
from retune.compiler.runtime.artifact import Array
from retune.compiler.te.tensor import ComputeOp, PackedCall, Tensor


def _run(result: Tensor, inputs: dict[Tensor, Array]) -> Array:
    out = np.zeros(result.shape, result.dtype)
    build([*inputs, result])(*inputs.values(), out)
    return out


def test_a_tensor_is_indexed_step_by_step_or_called() -> None:
    a, b = te.placeholder((8, 4), name="a"), te.placeholder((4, 6), name="b")
    k = te.reduce_axis((0, 4), name="k")
    steps = te.compute((8, 6), lambda i, j: te.sum(a[i][k] * b[k][j], axis=[k]), name="c")
    calls = te.compute((8, 6), lambda *i: te.sum(a(i[0], k) * b(k, i[1]), axis=k), name="c")
    x, y = np.random.rand(8, 4).astype("float32"), np.random.rand(4, 6).astype("float32")
    for product in (steps, calls):
        np.testing.assert_allclose(_run(product, {a: x, b: y}), x @ y, rtol=1e-5)


def test_a_read_with_too_few_indices_is_refused_where_it_is_used() -> None:
    a = te.placeholder((8, 4), name="a")
    with pytest.raises(DefinitionError, match="a has 2 dimensions but is read with 1 indices"):
        te.compute((8,), lambda i: a[i] + 1.0)
    with pytest.raises(DefinitionError, match="2 dimensions but is read with 3"):
        te.compute((8,), lambda i: a[i][0][0])
    with pytest.raises(DefinitionError, match="cannot be iterated"):
        list(a[0])


@pytest.mark.parametrize(("left", "right"), [((4, 3), (4, 3)), ((4, 3), (3,)), ((4, 1), (1, 3)), ((2, 1, 3), (4, 1))])
def test_arithmetic_of_tensors_broadcasts_as_numpy_does(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = te.placeholder(left, name="a"), te.placeholder(right, name="b")
    x, y = np.random.rand(*left).astype("float32") + 1, np.random.rand(*right).astype("float32") + 1
    for found, wanted in ((a + b, x + y), (a - b, x - y), (a * b, x * y), (a / b, x / y)):
        np.testing.assert_allclose(_run(found, {a: x, b: y}), wanted, rtol=1e-6)


def test_arithmetic_of_a_tensor_and_a_number() -> None:
    a, x = te.placeholder((5,), name="a"), np.arange(1, 6, dtype="float32")
    for found, wanted in ((a + 2, x + 2), (2 - a, 2 - x), (2.0 * a, 2 * x), (1 / a, 1 / x), (a / 2, x / 2)):
        np.testing.assert_allclose(_run(found, {a: x}), wanted, rtol=1e-6)


def test_tensors_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(DefinitionError, match=r"T_add: the shapes \(4,\) and \(3,\) do not broadcast"):
        te.placeholder((4,), name="a") + te.placeholder((3,), name="b")


def test_operations_have_the_attributes_of_tvms() -> None:
    a, k = te.placeholder((4, 3), name="a"), te.reduce_axis((0, 3), name="k")
    row = te.compute((4,), lambda i: te.sum(a[i, k], k), name="row", tag="reduction")
    assert isinstance(row.op, ComputeOp)
    assert (row.op.tag, a.op.tag) == ("reduction", "")
    assert [axis.name for axis in row.op.axis] == ["i"]
    assert [axis.name for axis in row.op.reduce_axis] == ["k"]
    assert row.op.input_tensors == (a,)
    assert (row.ndim, a.ndim) == (1, 2)


def test_varargs_are_named() -> None:
    made = te.compute((2, 3), lambda *i: i[0] + i[1], varargs_names=["row", "column"])
    assert isinstance(made.op, ComputeOp)
    assert [axis.name for axis in made.op.axis] == ["row", "column"]


def test_extern_takes_the_parameters_of_tvm_in_their_order() -> None:
    a = te.placeholder((4,), name="a")
    want = te.placeholder((4,), name="want")

    def call(ins: tuple[te.Handle, ...], outs: tuple[te.Handle, ...]) -> PackedCall:
        return te.call_packed("nothing", *ins, *outs)

    made = te.extern((4,), [a], call, "made", "float32", [want], [want], "a tag", {"FLOP": 4})
    assert (made.op.tag, made.op.attrs["FLOP"]) == ("a tag", 4)
    with pytest.raises(DefinitionError, match="its buffers are"):
        te.extern((5,), [a], call, out_buffers=[want])
