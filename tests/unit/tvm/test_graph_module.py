"""The interface of the graph executor."""

from typing import Any

import numpy as np
import pytest

from benchmarks.graph_json import EntrySpec, GraphJson, Node, Source
from retune.compiler import te
from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.driver.build import build
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.executor.graph_import import NOP
from retune.compiler.runtime.ffi.registry import register_func, remove_global_func
from retune.compiler.runtime.timing import BenchmarkResult
from retune.compiler.tvm.graph_executor import (
    GraphModule,
    Library,
    cpu,
    create,
    device,
    empty,
    get_device,
    save_param_dict,
)
from tests.support.doubling_network import SHAPE, doubling_network
from tests.support.graphs import ARITHMETIC, chain, one_call, weighted
from tests.support.ir_kernels import ELEMENTS

W, V = np.arange(4, dtype="float32"), np.full(4, 3, "float32")
BLOB = save_param_dict({"w": W, "v": V})
X = np.array([1, -2, 0.5, 8], "float32")


def _weighted() -> GraphModule:
    return create(weighted().dumps(), ARITHMETIC, cpu())


def test_get_device_numbers_the_kinds_of_devices() -> None:
    assert get_device(None, cpu(0)) == ([cpu(0)], 0, [1, 0])
    assert get_device(None, [device("cpu"), device("llvm", 0)]) == ([cpu(), cpu()], 0, [1, 0, 1, 0])
    for wrong in ("cpu", [], [cpu(), "cpu"], None):
        with pytest.raises(OptionError, match="a Device or a list of Devices"):
            get_device(None, wrong)  # type: ignore[arg-type]
    for elsewhere in (device("opencl"), device("cpu", 1)):
        with pytest.raises(OptionError, match=r"networks run on cpu\(0\) and on GPUs such as cuda\(0\), not on"):
            create(one_call().dumps(), ARITHMETIC, elsewhere)
    with pytest.raises(OptionError, match=r"compiled for the CPU alone, and given is cuda\(1\): run it on cpu"):
        create(one_call().dumps(), ARITHMETIC, device("cuda:1"))
    with pytest.raises(OptionError, match="cuda:1 names a number already, so 2 is one too many"):
        device("cuda:1", 2)
    with pytest.raises(OptionError, match="no device is called 'tpu'"):
        device("tpu")


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_scalar_inputs_are_arrays_numpy_scalars_or_numbers(dtype: str) -> None:
    x, y = te.placeholder((), dtype=dtype, name="x"), te.placeholder((), dtype=dtype, name="y")
    function = build([x, y, te.compute((), lambda: x[()] + y[()], name="z")], name="fused_add")
    nodes = (Node("x"), Node("y"), Node("z", "fused_add", (Source(0), Source(1))))
    graph = GraphJson(nodes, (0, 1), (Source(2),), tuple(EntrySpec((), dtype, i) for i in range(3)))
    module = create(graph.dumps(), {"fused_add": function}, cpu())
    scalar = np.dtype(dtype).type
    one: Any
    other: Any
    for one, other in ((np.array(2, dtype), np.array(3, dtype)), (scalar(4), scalar(5)), (6, 7)):
        module.run(x=one, y=other)
        assert module.get_output(0) == one + other
        assert module.get_output(0).dtype == dtype
    one, words = (0.5, "x must be int32") if dtype == "int32" else ("3", "x must be float32")
    with pytest.raises(OptionError, match=words):
        module.set_input("x", one)
    if dtype == "int32":
        with pytest.raises(OptionError, match="x is no array"):
            module.set_input("x", 1 << 40)


def test_broadcast_and_exp_with_a_parameter() -> None:
    x, y = te.placeholder((10, 5), name="x"), te.placeholder((1, 5), name="y")
    total = te.compute((10, 5), lambda i, j: te.exp(x[i, j] + y[0, j]), name="total")
    function = build([x, y, total], name="fused_add_exp")
    nodes = (Node("x"), Node("y"), Node("total", "fused_add_exp", (Source(0), Source(1))))
    shapes = ((10, 5), (1, 5), (10, 5))
    graph = GraphJson(nodes, (0, 1), (Source(2),), tuple(EntrySpec(s, "float32", i) for i, s in enumerate(shapes)))
    module = create(graph.dumps(), {"fused_add_exp": function}, [cpu()])
    rng = np.random.default_rng(3)
    a, b = rng.random((10, 5), np.float32), rng.random((1, 5), np.float32)
    module.load_params(save_param_dict({"y": b}))
    module.run(x=a)
    np.testing.assert_allclose(module.get_output(0), np.exp(a + b), rtol=1e-5)


def test_inputs_have_an_index_a_shape_and_a_type() -> None:
    module = _weighted()
    assert [module.get_input_index(name) for name in ("w", "x", "Invalid")] == [1, 0, -1]
    assert module.get_num_inputs() == 3
    assert module.get_num_outputs() == 1
    shapes, dtypes = module.get_input_info()
    assert shapes == {"x": (4,), "w": (4,), "v": (4,)}
    assert dtypes == dict.fromkeys(shapes, "float32")
    module.load_params(BLOB)
    assert module.get_input_info() == ({"x": (4,)}, {"x": "float32"})
    np.testing.assert_array_equal(module.get_input("w"), W)
    out = np.empty(4, "float32")
    assert module.get_input(1, out) is out
    np.testing.assert_array_equal(out, W)


def test_input_info_is_right_after_a_node_of_several_outputs() -> None:
    total = Node("sum", "add", (Source(1, 1), Source(2)))
    nodes = (Node("x"), Node("split", "split", (Source(0),), 2), Node("w"), total)
    shapes = ((6,), (2,), (4,), (4,), (4,))
    graph = GraphJson(nodes, (0, 2), (Source(3),), tuple(EntrySpec(s, "float32", i) for i, s in enumerate(shapes)))

    def split(x: Array, low: Array, high: Array) -> None:
        low[...], high[...] = x[:2], x[2:]

    module = create(graph.dumps(), {**ARITHMETIC, "split": split}, cpu())
    assert module.get_input_info()[0] == {"x": (6,), "w": (4,)}
    module.run(x=np.arange(6, dtype="float32"), w=W)
    np.testing.assert_array_equal(module.get_output(0), np.arange(2, 6, dtype="float32") + W)


def test_benchmark_returns_a_result_per_repeat() -> None:
    module = _weighted()
    module.load_params(BLOB)
    result = module.benchmark(cpu(), repeat=2, number=1, x=X)
    assert isinstance(result, BenchmarkResult)
    assert len(result.results) == 2
    assert result.mean == result.median > 0
    np.testing.assert_array_equal(module.get_output(0), (X + W) * V)
    assert module.benchmark(cpu(), func_name="run", repeat=3, number=1, end_to_end=True, x=X).min > 0
    with pytest.raises(AttributeError, match="has no function 'walk'; it has set_input"):
        module.benchmark(cpu(), func_name="walk")
    with pytest.raises(OptionError, match="limit_zero_time_iterations must be at least 1"):
        module.benchmark(cpu(), limit_zero_time_iterations=0)


def test_benchmark_calls_once_more_than_asked_and_until_min_repeat_ms() -> None:
    calls: list[int] = []
    module = create(one_call().dumps(), {"myadd": lambda *arrays: calls.append(len(arrays))}, cpu())
    module.benchmark(cpu(), repeat=1, number=1)
    assert len(calls) == 2
    module.benchmark(cpu(), repeat=1, number=1, min_repeat_ms=1)
    assert len(calls) > 12


@pytest.mark.parametrize("heirs", [10])
def test_shared_parameters_outlive_their_executor(heirs: int) -> None:
    first = _weighted()
    first.load_params(BLOB)
    others = [_weighted() for _ in range(heirs)]
    for other in others:
        other.share_params(first, BLOB)
        assert other.module.value(1).ctypes.data == first.module.value(1).ctypes.data
        assert other.get_input_info()[0] == {"x": (4,)}
    del first
    for other in others:
        other.run(x=X)
        np.testing.assert_array_equal(other.get_output(0), (X + W) * V)
    others[0].set_input("w", V)  # its own from now on
    for other, w in ((others[0], V), (others[1], W)):
        other.run(x=X)
        np.testing.assert_array_equal(other.get_output(0), (X + w) * V)


def test_parameters_with_unknown_names_are_ignored() -> None:
    module = _weighted()
    module.load_params(save_param_dict({"w": W, "v": V, "unknown": X}))
    module.run(x=X)
    np.testing.assert_array_equal(module.get_output(0), (X + W) * V)


def test_parameters_are_loaded_all_or_none() -> None:
    module = _weighted()
    module.load_params(BLOB)
    too_long = save_param_dict({"w": V, "v": np.ones(5, "float32")})
    for bad, error in ((too_long, OptionError), (BLOB[:-1], ArtifactError)):
        with pytest.raises(error):
            module.load_params(bad)
        np.testing.assert_array_equal(module.get_input("w"), W)
    with pytest.raises(OptionError, match="has no parameter w to share"):
        module.share_params(create(one_call().dumps(), ARITHMETIC, cpu()), BLOB)


@pytest.mark.parametrize("other", ["a", None, 5])
def test_what_is_no_module_and_no_library_is_refused(other: Any) -> None:
    with pytest.raises(OptionError, match="shared with another GraphModule"):
        _weighted().share_params(other, BLOB)
    with pytest.raises(OptionError, match="a library, a module, or functions by their names"):
        create(weighted().dumps(), other, cpu())


def test_an_output_without_a_copy() -> None:
    module = _weighted()
    module.load_params(BLOB)
    one, other = empty((4,), "float32"), empty((4,), "float32")
    one[...] = other[...] = -1
    module.set_output_zero_copy("product", one)
    np.testing.assert_array_equal(one, -1)
    module.run(x=X)
    np.testing.assert_array_equal(one, (X + W) * V)
    module.set_output_zero_copy(0, other)
    module.run(x=2 * X)
    np.testing.assert_array_equal(one, (X + W) * V)
    np.testing.assert_array_equal(other, (2 * X + W) * V)
    np.testing.assert_array_equal(module.get_output(0), other)


def test_an_input_without_a_copy_of_compiled_kernels() -> None:
    module = GraphModule(Library(doubling_network())["default"](cpu()))
    x, out = empty(SHAPE, "float32"), empty(SHAPE, "float32")
    x[...], out[...] = 1, 0
    module.set_input_zero_copy("x", x)
    module.set_output_zero_copy("flat", out.reshape(-1))
    for value in (1, 5):
        x[...] = value
        module.run()
        np.testing.assert_array_equal(out, np.full(SHAPE, 8 * value))
        np.testing.assert_array_equal(module.get_output("out"), out)
    module.set_input("x", np.zeros(SHAPE, "float32"))
    module.run()
    assert not out.any()
    assert (x == 5).all()


def _frozen() -> Array:
    array = empty((4,), "float32")
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (empty((5,), "float32")[1:], "start at a multiple of 64 bytes"),
        (empty((8,), "float32")[::2], "must be dense"),
        (empty((2, 2), "float32"), r"must be float32\[4\], not float32\[2, 2\]"),
        (empty((4,), "int32"), "not int32"),
        (_frozen(), "read-only, and the network writes to it"),
        ([1, 2, 3, 4], "an array is needed, of NumPy or with DLPack, not a list"),
    ],
)
def test_an_array_that_kernels_could_not_take_is_refused(array: Any, words: str) -> None:
    module = _weighted()
    with pytest.raises(OptionError, match=words):
        module.set_output_zero_copy(0, array)


class _Tensor:
    """An array of another library: it has DLPack's methods alone."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_arrays_of_other_libraries_are_used_without_a_copy() -> None:
    module = _weighted()
    module.load_params(BLOB)
    x, y, out = (_Tensor(empty((4,), "float32")) for _ in range(3))
    module.set_input_zero_copy("x", x)
    module.set_output_zero_copy(0, y)
    for value in (1, 2):
        x.array[...] = value
        module.run()
        np.testing.assert_array_equal(y.array, (value + W) * V)
    assert id(module.get_output(0, out)) == id(out)
    np.testing.assert_array_equal(out.array, y.array)


@pytest.mark.parametrize("method", ["set_input_zero_copy", "set_output_zero_copy", "get_output"])
def test_an_array_that_its_library_does_not_share_is_refused(method: str) -> None:
    class Guarded(_Tensor):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("it requires a gradient")

    with pytest.raises(OptionError, match="this Guarded cannot be used without a copy: it requires a gradient"):
        getattr(_weighted(), method)(0, Guarded(empty((4,), "float32")))


def test_arrays_of_callers_must_not_overlap_where_something_is_written() -> None:
    module = _weighted()
    both = empty((4,), "float32")
    module.set_input_zero_copy("x", both)
    module.set_input_zero_copy("w", both)  # both are only read
    with pytest.raises(OptionError, match="shares memory with x"):
        module.set_output_zero_copy(0, both)
    module.set_input("x", X)
    module.set_input("w", W)
    module.set_output_zero_copy(0, both)
    with pytest.raises(OptionError, match="shares memory with product"):
        module.set_input_zero_copy("v", both)


def test_an_output_that_is_an_input_has_no_memory_of_its_own() -> None:
    nodes = (Node("x"), Node("n", "myadd", (Source(0),)))
    entries = (EntrySpec((4,), "float32", 0), EntrySpec((4,), "float32", 1))
    module = create(GraphJson(nodes, (0,), (Source(0),), entries).dumps(), ARITHMETIC, cpu())
    with pytest.raises(OptionError, match="is x itself, which the network does not write"):
        module.set_output_zero_copy(0, empty((4,), "float32"))


def test_of_two_outputs_in_one_memory_one_has_an_array_of_the_caller() -> None:
    module = GraphModule(Library(doubling_network())["default"](cpu()))
    out, flat, other = empty(SHAPE, "float32"), empty((ELEMENTS,), "float32"), empty(SHAPE, "float32")
    module.set_output_zero_copy("out", out)
    with pytest.raises(OptionError, match="the array for the output flat: it shows the memory of out"):
        module.set_output_zero_copy("flat", flat)
    module.set_output_zero_copy("out", other)
    module.run(x=np.ones(SHAPE, "float32"))
    np.testing.assert_array_equal(other, np.full(SHAPE, 8))
    np.testing.assert_array_equal(module.get_output("flat"), np.full(ELEMENTS, 8))


def test_an_output_that_is_the_beginning_of_a_value_stays_there() -> None:
    nodes = (Node("x"), Node("sum", "myadd", (Source(0),)), Node("head", NOP, (Source(1),)))
    entries = (EntrySpec((4,), "float32", 0), EntrySpec((4,), "float32", 1), EntrySpec((3,), "float32", 1))
    module = create(GraphJson(nodes, (0,), (Source(2), Source(1)), entries).dumps(), ARITHMETIC, cpu())
    with pytest.raises(OptionError, match="the array for the output head: it is the beginning of sum"):
        module.set_output_zero_copy(0, empty((3,), "float32"))
    whole = empty((4,), "float32")
    module.set_output_zero_copy(1, whole)
    module.run(x=X)
    np.testing.assert_array_equal(whole, X + 1)
    np.testing.assert_array_equal(module.get_output(0), X[:3] + 1)


def test_functions_of_the_module_inside() -> None:
    module = _weighted()
    module["set_input"]("x", X)
    module["load_params"](BLOB)
    module["run"]()
    np.testing.assert_array_equal(module["get_output"](0), (X + W) * V)
    with pytest.raises(AttributeError):
        module["fly"]
    with pytest.raises(NotImplementedError, match=r"compiler\.tvm\.debug_executor"):
        module.debug_get_output("sum", X)


def test_functions_of_a_graph_must_exist_and_get_inputs_read_only() -> None:
    with pytest.raises(ArtifactError, match="node add: the library has no function 'myadd'"):
        create(one_call().dumps(), {}, cpu())

    def spoil(x: Array, _: Array) -> None:
        x[...] = 0

    module = create(one_call().dumps(), {"myadd": spoil}, cpu())
    with pytest.raises(ValueError, match="read-only"):
        module.run(x=X)


def test_what_a_function_inside_kernels_raises_reaches_the_caller() -> None:
    calls: list[float] = []

    def limited(x: Array, out: Array) -> None:
        calls.append(float(x[0]))
        if x[0] > 5:
            raise KeyError("too large")
        out[...] = x + 1

    register_func("tests.limited", limited)
    try:
        x = te.placeholder((4,), name="x")
        y = te.extern((4,), [x], lambda ins, outs: te.call_packed("tests.limited", *ins, *outs), name="y")
        module = create(chain("f f f", (0, 1, 2, 1)).dumps(), {"f": build([x, y], name="f")}, cpu())
    finally:
        remove_global_func("tests.limited")
    with pytest.raises(KeyError, match="too large"):
        module.run(x=np.full(4, 4.5, "float32"))
    assert calls == [4.5, 5.5]
    module.run(x=np.zeros(4, "float32"))
    np.testing.assert_array_equal(module.get_output(0), np.full(4, 3))


def test_a_kernel_that_does_not_fit_its_node_is_refused() -> None:
    x = te.placeholder((5,), name="x")
    function = build([x, te.compute((5,), lambda i: x[i] + 1.0, name="y")], name="myadd")
    with pytest.raises(ArtifactError, match="call of myadd"):
        create(one_call().dumps(), {"myadd": function}, cpu())
    with pytest.raises(ArtifactError, match="that was built as 'myadd'"):
        create(one_call().dumps().replace("myadd", "other"), {"other": function}, cpu())


def test_bytes_that_an_executor_holds() -> None:
    use = Library(doubling_network())["default"](cpu()).memory()
    nbytes = SHAPE[0] * SHAPE[1] * 4
    assert (use.inputs, use.outputs, use.constants, use.arena) == (nbytes, 2 * nbytes, nbytes, 2 * nbytes)
    assert use.peak == 6 * nbytes + use.workspace
