"""Functions, values and arrays of the FFI: the examples of TVM's page about PackedFunc, under our names."""

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from hypothesis import given, settings, strategies

from retune import compiler
from retune.compiler import nd, te
from retune.compiler.core.errors import ArtifactError, MismatchError, OptionError, RegistryError
from retune.compiler.ir.expr import Binary, BinaryOp, Var
from retune.compiler.runtime import NDArray, PackedFunc, convert, object_use_count
from retune.compiler.runtime.ffi.bindings import FFIDevice
from retune.compiler.runtime.ffi.container import (
    Array,
    Map,
    assert_structural_equal,
    load_json,
    save_json,
    structural_equal,
)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    before = set(compiler.list_global_func_names())
    yield
    for name in set(compiler.list_global_func_names()) - before:
        compiler.remove_global_func(name)


def echo(value: Any) -> Any:
    """The value, after it went through a function of the FFI."""
    return convert(lambda given: given)(value)


def test_a_global_function_is_registered_found_and_listed() -> None:
    targs = (10, 10.0, "hello")

    @compiler.register_func
    def my_packed_func(*args: Any) -> int:
        assert tuple(args) == targs
        assert [type(arg) for arg in args[:2]] == [int, float]
        return 10

    f = compiler.get_global_func("my_packed_func")
    assert isinstance(f, PackedFunc)
    assert f(*targs) == 10
    assert "my_packed_func" in compiler.list_global_func_names()


def test_the_registry_is_the_one_of_the_ffi() -> None:
    tvm_ffi.register_global_func("tests.from_outside", lambda x: x + 1)
    assert compiler.get_global_func("tests.from_outside")(1) == 2
    with pytest.raises(RegistryError, match=r"tests\.from_outside is registered already"):
        compiler.register_func("tests.from_outside", lambda x: x)
    compiler.register_func("tests.from_outside", lambda x: x + 2, override=True)
    assert tvm_ffi.get_global_func("tests.from_outside")(1) == 3
    compiler.remove_global_func("tests.from_outside")
    assert tvm_ffi.get_global_func("tests.from_outside", allow_missing=True) is None


def test_functions_of_the_library_itself_are_called() -> None:
    """A function that C++ registered: the FFI's own array constructor."""
    assert list(compiler.get_global_func("ffi.Array")(4, 5)) == [4, 5]


def test_a_function_is_an_argument() -> None:
    said: list[str] = []
    callhello = convert(lambda f: f("hello world"))
    callhello(convert(said.append))
    callhello(lambda text: said.append(text))
    assert said == ["hello world"] * 2


def test_callbacks_take_objects() -> None:
    x = convert([10])
    handles = []

    def test(y: Any) -> Any:
        handles.append(id(y))
        return y

    f2 = convert(test)

    @compiler.register_func
    def my_callback_with_node(y: Any, f: Any) -> Any:
        assert y == x
        return f(y)

    f = compiler.get_global_func("my_callback_with_node")
    assert isinstance(f, PackedFunc)
    assert f(x, f2)[0] == 10
    assert handles


def test_functions_that_return_functions() -> None:
    def addy(y: int) -> Any:
        def add(x: int) -> Any:
            return convert(x + y)

        return add

    f = convert(addy)(10)
    assert isinstance(f, PackedFunc)
    assert f(11) == 21


def test_bytes_and_empty_tuples_are_arguments() -> None:
    a = bytearray("hello", encoding="ascii")

    def myfunc(ss: Any) -> None:
        assert ss == a

    convert(myfunc)(a)

    def empty(ss: Any) -> None:
        assert tuple(ss) == ()

    convert(empty)(convert(()))


SCALARS = [np.int64((1 << 63) - 1), np.int32(-7), np.float32(0.5), np.float64(0.1), np.uint8(9)]


@pytest.mark.parametrize("value", SCALARS)
def test_numpy_scalars_come_back_as_numbers(value: Any) -> None:
    assert echo(value) == value.item()


def test_devices_pass_by_value() -> None:
    def test_device_func(dev: Any) -> Any:
        assert compiler.cuda(7) == dev
        assert dev == compiler.cuda(7)
        return compiler.cpu(0)

    x = convert(test_device_func)(compiler.cuda(7))
    assert x == compiler.cpu(0)
    assert isinstance(x, FFIDevice)
    x = echo(compiler.opencl(10))
    assert (x.device_type, x.device_id) == (4, 10)
    assert x == compiler.opencl(10)
    assert x != compiler.opencl(9)
    assert x != compiler.cuda(10)
    assert len({x, compiler.opencl(10)}) == 1
    assert compiler.device("opencl", 10) == x


class TestS5Moves:
    """Use counts of an object that is passed, and of one that is moved."""

    @staticmethod
    def counted() -> Any:
        def callback(x: Any, expected: int) -> Any:
            assert object_use_count(x) == expected
            return x

        return convert(callback)

    def test_an_object_is_moved(self) -> None:
        f, x = self.counted(), convert([1])
        assert object_use_count(x) == 1
        f(x, 2)
        gc.collect()
        assert object_use_count(x) == 1
        y = f(x._move(), 1)
        assert object_use_count(x) == 0
        assert y[0] == 1

    def test_an_object_with_two_owners_is_moved(self) -> None:
        f, x = self.counted(), convert([1])
        y = f(x, 2)
        z = f(x._move(), 2)
        assert object_use_count(x) == 0
        assert y.same_as(z)


def test_an_array_in_a_callback_is_owned_not_viewed() -> None:
    def check(arr: Any) -> None:
        assert isinstance(arr, NDArray)
        assert not arr.is_view
        assert object_use_count(arr) == 2
        np.testing.assert_array_equal(arr.numpy(), [1, 2, 3])

    x = nd.array([1, 2, 3])
    convert(check)(x)
    gc.collect()
    assert object_use_count(x) == 1


def test_dicts_of_functions_take_expressions() -> None:
    functions = convert({"add": lambda a, b: a + b})
    a, b = Var("a", "float32"), Var("b", "float32")
    assert_structural_equal(functions["add"](a, b), Binary(BinaryOp.ADD, a, b))
    with pytest.raises(MismatchError, match=r"\(a \+ b\)"):
        assert_structural_equal(functions["add"](a, b), Binary(BinaryOp.SUB, a, b))


def test_lists_are_indexed_sliced_and_saved_as_json() -> None:
    a = convert([1, 2, 3])
    assert isinstance(a, Array)
    assert len(a) == 3
    assert a[-1] == 3
    assert list(a[-3:-1]) == [1, 2]
    loaded = load_json(save_json(a))
    assert isinstance(loaded, Array)
    assert_structural_equal(loaded, a, map_free_vars=True)


def test_dicts_are_read_by_key() -> None:
    amap = convert({"a": 2, "b": 3})
    assert isinstance(amap, Map)
    assert amap["a"] == 2
    assert "c" not in amap
    assert sorted(amap.items()) == [("a", 2), ("b", 3)]
    with pytest.raises(KeyError):
        amap["c"]


def test_arrays_in_a_list_are_the_same_objects() -> None:
    x = nd.array([1, 2, 3])
    arr = convert([x, x])
    assert arr[0].same_as(x)
    assert isinstance(arr[1], NDArray)


def test_strings_come_back_unchanged() -> None:
    text = convert("hello")
    assert isinstance(text, str)
    assert echo(text) == "hello"
    assert text.startswith("he")
    assert echo("non-printable \x00 \x07 ü") == "non-printable \x00 \x07 ü"


def test_json_keeps_sharing_and_extremes() -> None:
    inner = convert([1, 2.5, "x\x01", None, True])
    loaded = load_json(save_json({"z": [inner], "y": inner}))
    assert loaded["z"][0].same_as(loaded["y"])
    assert list(loaded["y"]) == [1, 2.5, "x\x01", None, True]
    numbers = [float("inf"), -float("inf"), float(np.finfo("float32").max), float(np.finfo("float64").tiny)]
    assert list(load_json(save_json(numbers))) == numbers
    for value in (lambda: 1, object()):
        with pytest.raises(ArtifactError, match="cannot be saved as JSON"):
            save_json(value)
    for text in ("", "{", "[1]", '{"root_index": 7, "nodes": []}', '{"root_index": 0, "nodes": [{"type": "no.such"}]}'):
        with pytest.raises(ArtifactError, match="no text that save_json makes"):
            load_json(text)


@pytest.mark.parametrize(
    "nodes",
    [
        '[{"type": "ffi.Array", "data": [0]}]',
        '[{"type": "ffi.Map", "data": [1, 1]}, {"type": "ffi.Array", "data": [0]}]',
        '[{"type": "int", "data": [1], "data": 2}, {"type": "ffi.Array", "data": [0], "data": [1]}]',
        '[{"type": "int", "data": 1}' + "".join(f', {{"type": "ffi.Array", "data": [{n}]}}' for n in range(600)) + "]",
        "[" * 100_000,
    ],
    ids=["itself", "in turn", "twice", "deep", "brackets"],
)
def test_json_that_refers_to_itself_is_refused(nodes: str) -> None:
    with pytest.raises(ArtifactError, match="no text that save_json makes"):
        load_json(f'{{"root_index": 0, "nodes": {nodes}}}')


@settings(max_examples=300, deadline=None)
@given(data=strategies.data())
def test_changed_json_loads_or_is_refused(data: strategies.DataObject) -> None:
    text = save_json({"a": [1, 2.5, {"b": b"xx"}], "c": [compiler.cuda(1), None, True, "y" * 20]})
    pieces = ("-1", "1e999", "null", "[", "]", '"data"', "ffi.Map", "ffi.Shape", "int", "Device", "DataType", "9" * 20)
    for _ in range(data.draw(strategies.integers(1, 4))):
        start = data.draw(strategies.integers(0, len(text)))
        end = start + data.draw(strategies.integers(0, 8))
        text = text[:start] + data.draw(strategies.sampled_from(pieces) | strategies.text(max_size=2)) + text[end:]
    with suppress(ArtifactError):
        load_json(text)


def test_the_first_difference_is_named() -> None:
    for lhs, rhs, place in (
        ([1, 2, 3], [1, 4, 3], r"\[1\]"),
        ([1, 2, 3], [1, 2, 3, 4], r"\[3"),
        ([], [1], r"\[0"),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "b"),
        ({"a": 1}, {"a": 1, "c": 3}, "c"),
    ):
        for one, other in ((lhs, rhs), (rhs, lhs)):
            with pytest.raises(ValueError, match=place):
                assert_structural_equal(convert(one), convert(other))
            assert not structural_equal(one, other)
        assert structural_equal(lhs, convert(lhs))


@tvm_ffi.dataclasses.py_class("retune.tests.Name", structural_eq="var")
class Name(tvm_ffi.Object):
    """A variable: equal to another one where they stand in the same places."""

    name: str = tvm_ffi.dataclasses.field(structural_eq="ignore")


def test_free_variables_are_mapped() -> None:
    a, b = Name("a"), Name("b")
    with pytest.raises(MismatchError):
        assert_structural_equal([a, a], [b, b])
    assert_structural_equal([a, a], [b, b], map_free_vars=True)
    with pytest.raises(MismatchError):
        assert_structural_equal([a, a], [a, b], map_free_vars=True)


DTYPES = ["int8", "uint8", "int32", "int64", "float16", "float32", "float64", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_type(dtype: str) -> None:
    values = (np.arange(24).reshape(2, 3, 4) % 2).astype(dtype)
    x = nd.array(values, compiler.cpu(0))
    assert (x.shape, str(x.dtype)) == ((2, 3, 4), dtype)
    assert compiler.cpu() == x.device
    np.testing.assert_array_equal(x.numpy(), values)
    y = nd.empty((2, 3, 4), dtype)
    assert x.copyto(y) is y
    np.testing.assert_array_equal(np.asarray(y), values)
    assert x.data_ptr() % 64 == 0
    y[0] = 0
    assert (y[0] == 0).all()
    np.testing.assert_array_equal(x[1], values[1])


def test_arrays_that_do_not_fit_are_refused() -> None:
    x = nd.array(np.zeros((2, 3)))
    with pytest.raises(ArtifactError, match=r"shape \[3, 2\] does not fit into \[2, 3\]"):
        x.copyfrom(np.zeros((3, 2)))
    with pytest.raises(ArtifactError, match="cannot be copied to"):
        x.copyto([1])
    with pytest.raises(OptionError, match="cuda"):
        nd.array([1], compiler.cuda())
    with pytest.raises(ArtifactError, match="bfloat16"):
        nd.empty((2,), "bfloat16")
    with pytest.raises(ArtifactError, match="a str gives no array"):
        nd.from_dlpack("text")


@pytest.mark.parametrize(("shape", "dtype"), [((-1, 2), "float32"), ((2,), "foo"), ((2,), "U4")])
def test_arrays_of_no_numbers_or_of_no_size_are_refused(shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(OptionError, match=r"element type|shape"):
        nd.empty(shape, dtype)


def test_dlpack_round_trips() -> None:
    a = np.random.default_rng(0).standard_normal(1337)
    tvm_a = nd.array(a)
    np.testing.assert_equal(nd.from_dlpack(tvm_a.to_dlpack()).numpy(), a)
    shared = nd.from_dlpack(a)
    a[0] = 5
    assert shared.numpy()[0] == 5
    shared[1] = 6
    assert a[1] == 6
    view = nd.from_dlpack(nd.array(np.arange(16.0)[None]).numpy().reshape(2, 8))
    assert view.shape == (2, 8)


@pytest.mark.parametrize("kind", [NotImplementedError, ValueError, RegistryError, ZeroDivisionError, KeyboardInterrupt])
def test_errors_keep_their_class_and_frames(kind: type[BaseException]) -> None:
    def error_callback() -> None:
        raise kind("what was wrong")

    def flevel2() -> None:
        convert(error_callback)()

    def flevel3() -> None:
        convert(flevel2)()

    with pytest.raises(kind, match="what was wrong") as caught:
        convert(flevel3)()
    frames = [entry.name for entry in caught.traceback]
    assert [name for name in frames if name in ("flevel3", "flevel2", "error_callback")] == [
        "flevel3",
        "flevel2",
        "error_callback",
    ]


def test_any_class_with_dlpack_is_an_argument() -> None:
    class Mine:
        """An array class of somebody else."""

        def __init__(self) -> None:
            self.values = np.arange(3, dtype="float32")

        def __dlpack__(self, **options: Any) -> Any:
            return self.values.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.values.__dlpack_device__()

    seen = []
    convert(lambda x: seen.append(x.numpy().tolist()))(Mine())
    assert seen == [[0, 1, 2]]


def test_hook_a_python_function_as_an_extern(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = []

    @compiler.register_func("tests.contrib.my_tvm_addone")
    def my_tvm_addone(x: Any, y: Any) -> None:
        kinds.append((type(x), x.is_view))
        nd.array(x.numpy() + 1).copyto(y)

    n = 10
    a_ = te.placeholder((n,), name="A")
    b_ = te.extern(
        a_.shape, [a_], lambda ins, outs: te.call_packed("tests.contrib.my_tvm_addone", ins[0], outs[0]), name="C"
    )
    te_func = te.create_prim_func([a_, b_])
    te_func.show()
    assert capsys.readouterr().out == (
        "def main(A: float32[10], C: float32[10]):\n    call_packed('tests.contrib.my_tvm_addone', A, C)\n"
    )
    f = compiler.build(te_func, "llvm")
    dev = compiler.cpu(0)
    a = nd.array(np.random.default_rng(0).uniform(size=(n,)).astype(a_.dtype), dev)
    b = nd.array(np.random.default_rng(1).uniform(size=(n,)).astype(b_.dtype), dev)
    f(a, b)
    np.testing.assert_allclose(b.numpy(), a.numpy() + 1, rtol=1e-5)
    assert kinds == [(NDArray, False)]


def test_scalars_and_tensors_mixed_reach_the_function_and_its_errors_the_caller() -> None:
    seen: list[tuple[Any, ...]] = []

    @compiler.register_func("tests.mixed")
    def mixed(x: Any, whole: int, y: Any, real: float, text: str, flag: bool, z: Any) -> None:
        seen.append((whole, real, text, flag, x.shape, str(y.dtype), z.strides))
        if whole != -3:
            raise NotImplementedError("no such number")
        y[...] = x.numpy() * real
        z[...] = x.numpy().sum(0)

    def function(number: int) -> Any:
        x = te.placeholder((2, 3), name="x")
        y, z = te.extern(
            [(2, 3), (3,)],
            [x],
            lambda ins, outs: te.call_packed("tests.mixed", ins[0], number, outs[0], 0.5, "ü", True, outs[1]),
            dtype=["float64", "float32"],
        )
        return compiler.build([x, y, z])

    x, y, z = nd.array(np.ones((2, 3), "float32")), nd.empty((2, 3), "float64"), nd.empty((3,))
    function(-3)(x, y, z)
    assert (y.numpy() == 0.5).all()
    assert z.numpy().tolist() == [2, 2, 2]
    assert seen == [(-3, 0.5, "ü", True, (2, 3), "float64", (1,))]
    broken = function(4)
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="no such number"):
            broken(x, y, z)
    compiler.remove_global_func("tests.mixed")
    with pytest.raises(ValueError, match=r"kernel main calls the function tests\.mixed, which is not registered"):
        broken(x, y, z)


def test_pytorch_calls_a_compiled_function() -> None:
    torch = pytest.importorskip("torch")

    x = torch.rand(56, 56)
    tvm_x = nd.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    y = nd.from_dlpack(tvm_x)
    np.testing.assert_equal(x.numpy(), tvm_x.numpy())
    np.testing.assert_equal(y.numpy(), tvm_x.numpy())
    np.testing.assert_equal(torch.utils.dlpack.from_dlpack(y.to_dlpack()).numpy(), tvm_x.numpy())

    f = compiler.build(matmul(137), name="f")
    xx, yy, zz2 = torch.rand(137, 137), torch.rand(137, 137), torch.empty(137, 137)
    f(xx, yy, zz2)
    np.testing.assert_allclose(xx.mm(yy).numpy(), zz2.numpy(), rtol=1e-4, atol=1e-4)


def matmul(n: Any) -> te.PrimFunc:
    """The page's function of two matrices."""
    x, y = te.placeholder((n, n), name="X"), te.placeholder((n, n), name="Y")
    k = te.reduce_axis((0, n), name="k")
    return te.create_prim_func([x, y, te.compute((n, n), lambda i, j: te.sum(x[i, k] * y[k, j], axis=k))])


def test_a_compiled_function_of_the_page_prints_and_runs() -> None:
    te_func = matmul(convert(137))
    assert te_func.script() == (
        "def main(X: float32[137, 137], Y: float32[137, 137], compute: float32[137, 137]):\n"
        "    for i, j in grid(137, 137):\n"
        "        compute[i, j] = 0.0\n"
        "        for k in range(137):\n"
        "            compute[i, j] = (compute[i, j] + (X[i, k] * Y[k, j]))"
    )
    f = compiler.build(te_func, name="f")
    rng = np.random.default_rng(0)
    x, y = (nd.array(rng.random((137, 137), "float32")) for _ in range(2))
    z = nd.empty((137, 137))
    f(x, y, z)
    np.testing.assert_allclose(z.numpy(), x.numpy() @ y.numpy(), rtol=1e-4, atol=1e-4)
