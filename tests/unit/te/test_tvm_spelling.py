"""Tensor expressions in TVM's spelling: step-by-step indexing, calls, arithmetic of tensors, tags and attributes."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import DefinitionError
from retune.compiler.driver.build import build
from retune.compiler.runtime.artifact import Array
from retune.compiler.te.evaluate import evaluate
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


_X = np.array([-3.5, -2.0, -0.75, -0.0, 0.0, 0.25, 0.5, 1.0, 2.0, 7.5], "float32")
_Y = np.array([2.0, -0.7, 1.5, 3.0, -1.0, 0.25, -4.0, 2.5, 1.0, -2.0], "float32")
_POSITIVE = np.abs(_X) + np.float32(0.125)
UNARY: dict[str, tuple[Any, Array]] = {
    "exp2": (np.exp2, _X), "exp10": (lambda x: 10**x, _X), "expm1": (np.expm1, _X), "log2": (np.log2, _POSITIVE),
    "log10": (np.log10, _POSITIVE), "log1p": (np.log1p, _POSITIVE), "trunc": (np.trunc, _X), "nearbyint": (np.rint, _X),
    "isinf": (np.isinf, np.array([np.inf, -np.inf, np.nan, 0, 3e38], "float32")),
    "isfinite": (np.isfinite, np.array([np.inf, -np.inf, np.nan, 0, 3e38], "float32")),
}  # fmt: skip
BINARY: dict[str, Any] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "div": np.divide, "floordiv": np.floor_divide,
    "floormod": np.mod, "fmod": np.fmod, "truncmod": np.fmod, "atan2": np.arctan2, "hypot": np.hypot,
    "copysign": np.copysign, "logaddexp": np.logaddexp,
}  # fmt: skip
INTEGERS: dict[str, Any] = {
    "div": lambda x, y: np.trunc(x / y), "truncdiv": lambda x, y: np.trunc(x / y), "truncmod": np.fmod,
    "floordiv": np.floor_divide, "indexdiv": np.floor_divide, "floormod": np.mod, "indexmod": np.mod,
    "ceildiv": lambda x, y: np.ceil(x / y),
}  # fmt: skip


def _check(function: Any, arrays: list[Array], wanted: Array) -> None:
    tensors = [te.placeholder(array.shape, str(array.dtype), f"x{place}") for place, array in enumerate(arrays)]
    result = te.compute(arrays[0].shape, lambda i: function(*(tensor[i] for tensor in tensors)), "y")
    known = dict(zip(tensors, arrays, strict=True))
    for found in (_run(result, known), evaluate([result], known)[0]):
        np.testing.assert_allclose(found, wanted, rtol=2e-3 if result.dtype == "float16" else 2e-6)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("name", UNARY)
def test_unary_functions_by_tvms_names_match_numpy(name: str, dtype: str) -> None:
    function, values = UNARY[name]
    with np.errstate(all="ignore"):
        x = values.astype(dtype)
        _check(getattr(te, name), [x], function(x))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("name", BINARY)
def test_binary_functions_by_tvms_names_match_numpy(name: str, dtype: str) -> None:
    x, y = _X.astype(dtype), _Y.astype(dtype)
    _check(getattr(te, name), [x, y], BINARY[name](x, y))


@pytest.mark.parametrize("name", INTEGERS)
def test_divisions_of_integers_round_as_their_names_say(name: str) -> None:
    x, y = np.array([-7, -6, -1, 0, 1, 6, 7, 7], "int32"), np.array([4, -4, 4, 4, -4, 3, 4, -7], "int32")
    _check(getattr(te, name), [x, y], np.asarray(INTEGERS[name](x, y), "int32"))


def test_logaddexp_of_equal_infinities_is_no_nan() -> None:
    x = np.array([-np.inf, np.inf, 1000.0, -np.inf], "float32")
    y = np.array([-np.inf, np.inf, 1000.0, 3.0], "float32")
    _check(te.logaddexp, [x, y], np.logaddexp(x, y))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int8", "uint32", "int64", "bool"])
def test_limits_of_types_are_finite(dtype: str) -> None:
    limits: list[Any] = [te.min_value(dtype), te.max_value(dtype)]
    assert all(limit.dtype == dtype for limit in limits)
    values = [limit.value for limit in limits]
    if dtype == "bool":
        assert values == [False, True]
    elif "float" in dtype:
        known = ml_dtypes.finfo(dtype)
        assert values == [float(known.min), float(known.max)]
    else:
        assert values == [np.iinfo(dtype).min, np.iinfo(dtype).max]


def test_functions_of_floats_refuse_integers() -> None:
    a = te.placeholder((4,), "int32", "a")
    for name in ("log2", "log10", "log1p", "expm1", "exp2", "exp10"):
        with pytest.raises(DefinitionError, match="cast it to a float first"):
            te.compute((4,), lambda i, name=name: getattr(te, name)(a[i]))
    with pytest.raises(DefinitionError, match="cast it to a float first"):
        te.compute((4,), lambda i: te.atan2(a[i], a[i]))


WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@pytest.mark.parametrize("dtype", WHOLE)
def test_bits_of_integers_are_counted_as_they_are_in_memory(dtype: str) -> None:
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 0, 1, 2, 5, 64, 100, info.max // 3, info.max - 6], dtype)
    texts = [f"{int(value) % (1 << info.bits):0{info.bits}b}" for value in x]
    _check(te.popcount, [x], np.array([text.count("1") for text in texts], dtype))
    zeros = [len(text) - len(text.lstrip("0")) for text in texts]
    _check(te.clz, [x], np.array(zeros, "int32"))
    a = te.placeholder((4,), dtype, "a")
    assert (te.popcount(a[0]).dtype, te.clz(a[0]).dtype) == (dtype, "int32")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_next_float_is_that_of_numpy(dtype: str) -> None:
    info = ml_dtypes.finfo(dtype)
    tiny, largest = float(info.smallest_subnormal), float(info.max)
    ends = [0.0, -0.0, 1.0, -1.0, tiny, -tiny, float(info.tiny), largest, -largest, np.inf, -np.inf, np.nan, 0.1, -3.0]
    x, y = (each.ravel().astype(dtype) for each in np.meshgrid(ends, ends))
    a, b = (te.placeholder(x.shape, dtype, name) for name in "ab")
    result = te.compute(x.shape, lambda i: te.nextafter(a[i], b[i]), "y")
    with np.errstate(all="ignore"):
        wanted = np.where(x == y, y, np.nextafter(x, y))  # of zeros of both signs NumPy gives a float16 its first
    known = {a: x, b: y}
    for found in (_run(result, known), evaluate([result], known)[0]):
        is_nan = np.isnan(wanted.astype("float64"))
        np.testing.assert_array_equal(np.isnan(found.astype("float64")), is_nan)
        kind = f"uint{8 * x.itemsize}"
        np.testing.assert_array_equal(found.view(kind)[~is_nan], wanted.view(kind)[~is_nan])


def test_all_and_any_join_conditions() -> None:
    a, x = te.placeholder((6,), "int32", "a"), np.arange(6, dtype="int32")
    both = te.compute((6,), lambda i: te.all(a[i] > 1, a[i] < 5, te.not_equal(a[i], 3)), "both")
    either = te.compute((6,), lambda i: te.any(a[i] < 1, a[i] > 4, te.equal(a[i], 3)), "either")
    assert _run(both, {a: x}).tolist() == [False, False, True, False, True, False]
    assert _run(either, {a: x}).tolist() == [True, False, False, True, False, True]


def test_functions_of_integers_refuse_floats_and_bools() -> None:
    for dtype in ("float32", "bool"):
        a = te.placeholder((4,), dtype, "a")
        for function in (te.popcount, te.clz):
            with pytest.raises(DefinitionError, match="cast it to an integer first"):
                function(a[0])
    with pytest.raises(DefinitionError, match=r"nextafter of .*cast it to a float first"):
        te.nextafter(te.placeholder((4,), "int32", "a")[0], 1)


def test_a_scope_tags_the_operations_defined_in_it() -> None:
    @te.tag_scope(tag="injective")
    def doubled(a: Tensor) -> Tensor:
        return te.compute(a.shape, lambda i: a[i] * 2.0, name="doubled")

    a = te.placeholder((8,), name="a")
    with te.tag_scope("elemwise"):
        b = te.compute((8,), lambda i: a[i] + 1.0, name="b")
    assert (b.op.tag, doubled(b).op.tag, doubled(b).op.tag) == ("elemwise", "injective", "injective")
    assert te.compute((8,), lambda i: a[i], name="c").op.tag == ""


def test_an_operation_has_one_tag() -> None:
    a, number = te.placeholder((8,), name="a"), 3
    with te.tag_scope("outer"):
        with pytest.raises(DefinitionError, match="'inner' is given inside the scope 'outer'"):
            te.compute((8,), lambda i: a[i], tag="inner")
        with pytest.raises(DefinitionError, match="'inner' is inside the scope 'outer'"), te.tag_scope("inner"):
            pass
    with pytest.raises(DefinitionError, match="at least one character, not 3"), te.tag_scope(number):  # type: ignore[arg-type]
        pass
