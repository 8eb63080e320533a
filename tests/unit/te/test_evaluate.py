"""The oracle against hand-written NumPy."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.dtype import Array
from retune.compiler.core.errors import DefinitionError
from retune.compiler.te import evaluate as evaluate_module
from retune.compiler.te.evaluate import evaluate


def test_matmul_with_epilogue() -> None:
    rng = np.random.default_rng(0)
    a = te.placeholder((5, 7), name="a")
    b = te.placeholder((7, 3), name="b")
    k = te.reduce_axis(7, "k")
    c = te.compute((5, 3), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="c")
    d = te.compute((5, 3), lambda i, j: te.maximum(c[i, j] - 1.0, 0), name="d")
    x, y = rng.standard_normal((5, 7), dtype=np.float32), rng.standard_normal((7, 3), dtype=np.float32)
    product, result = evaluate([c, d], {a: x, b: y})
    np.testing.assert_allclose(product, x @ y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result, np.maximum(x @ y - 1, 0), rtol=1e-5, atol=1e-6)
    assert result.dtype == np.float32


def test_a_reduction_too_big_for_one_array_is_looped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate_module, "_CHUNK_ELEMENTS", 40)
    a = te.placeholder((6, 4, 5), name="a")
    r, s = te.reduce_axis(4, "r"), te.reduce_axis(5, "s")
    total = te.compute((6,), lambda i: te.sum(a[i, r, s], (r, s)), name="total")
    largest = te.compute((6,), lambda i: te.max(a[i, r, s], (r, s)), name="largest")
    x = np.random.default_rng(1).standard_normal((6, 4, 5), dtype=np.float32)
    found = evaluate([total, largest], {a: x})
    np.testing.assert_allclose(found[0], x.sum(axis=(1, 2)), rtol=1e-5)
    np.testing.assert_array_equal(found[1], x.max(axis=(1, 2)))


def test_untaken_side_of_select_may_read_out_of_bounds() -> None:
    a = te.placeholder((4,), name="a")
    padded = te.compute((8,), lambda i: te.if_then_else(te.logical_and(i >= 2, i < 6), a[i - 2], -1.0), name="padded")
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(evaluate([padded], {a: x})[0], [-1, -1, 0, 1, 2, 3, -1, -1])


def test_a_read_out_of_bounds_is_reported() -> None:
    a, places = te.placeholder((4,), name="a"), te.placeholder((4,), "int64", name="places")
    shifted = te.compute((4,), lambda i: a[places[i] * 2], name="shifted")
    with pytest.raises(DefinitionError, match=r"shifted.*from 0 to 4"):
        evaluate([shifted], {a: np.zeros(4, np.float32), places: np.array([0, 1, 2, 0])})


def test_integer_division_truncates_and_floors() -> None:
    a = te.placeholder((6,), dtype="int64", name="a")
    x = np.array([-7, -6, -1, 1, 6, 7])
    quotient = te.compute((6,), lambda i: a[i] / 4, name="quotient")
    floor = te.compute((6,), lambda i: a[i] // 4, name="floor")
    rest = te.compute((6,), lambda i: a[i] % 4, name="rest")
    found = evaluate([quotient, floor, rest], {a: x})
    np.testing.assert_array_equal(found[0], [-1, -1, 0, 0, 1, 1])
    np.testing.assert_array_equal(found[1], x // 4)
    np.testing.assert_array_equal(found[2], x % 4)


def test_sum_without_axes_has_rank_zero() -> None:
    a = te.placeholder((3,), name="a")
    k = te.reduce_axis(3, "k")
    total = te.compute((), lambda: te.sum(a[k], k), name="total")
    (found,) = evaluate([total], {a: np.array([1, 2, 4], np.float32)})
    assert found.shape == ()
    assert found == 7


@pytest.mark.parametrize("array", [np.zeros(3, np.float32), np.zeros(4, np.float64)])
def test_inputs_are_checked(array: Array) -> None:
    a = te.placeholder((4,), name="a")
    with pytest.raises(DefinitionError, match="a is a float32 tensor"):
        evaluate([a], {a: array})


def test_a_missing_input_is_named() -> None:
    a = te.placeholder((4,), name="absent")
    with pytest.raises(DefinitionError, match="absent"):
        evaluate([te.compute((4,), lambda i: a[i], name="copy")], {})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sum_takes_another_type_once_it_is_complete(dtype: str) -> None:
    x, k = te.placeholder((3,), dtype, "x"), te.reduce_axis(3, "k")
    square = te.cast("float32", x[k]) * te.cast("float32", x[k])
    total = te.compute((1,), lambda _: te.cast(dtype, te.sum(te.if_then_else(k < 2, square, -square), k)), "total")
    assert total.dtype == dtype
    values = np.array([300, 16, 300]).astype(dtype)
    assert float(evaluate([total], {x: values})[0][0]) == 256.0
    assert str(total.op.body).startswith(f"{dtype}(sum(")  # type: ignore[union-attr]


def test_only_sums_and_products_of_floats_take_another_type() -> None:
    x, k = te.placeholder((3,), "float32", "x"), te.reduce_axis(3, "k")
    bodies = (
        lambda: te.cast("float16", te.max(x[k], k)),
        lambda: te.cast("int32", te.sum(x[k], k)),
        lambda: te.cast("float32", te.sum(te.cast("int32", x[k]), k)),
        lambda: te.cast("float32", te.cast("float16", te.sum(x[k], k))),
    )
    for body in bodies:
        with pytest.raises(DefinitionError, match="must be the whole body"):
            te.compute((1,), lambda _, body=body: body(), "y")
