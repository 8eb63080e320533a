"""A computation as a function of NumPy arrays: what it takes, and what it refuses."""

import platform
from typing import Any

import numpy as np
import pytest

from retune import compiler
from retune.compiler import auto_scheduler, nd, te
from retune.compiler.core.errors import ArtifactError, DefinitionError, LoweringError, RetuneError, ScheduleError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build, build_kernel
from retune.compiler.ir.expr import Expr
from retune.compiler.runtime.buffers import aligned_array, aligned_copy
from retune.compiler.runtime.function import KernelFunction
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.primitives import split
from retune.compiler.schedule.state import Annotation, State
from retune.compiler.schedule.steps import Annotate, Fuse, Pragma, Reorder, Split, Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.tensor import Tensor


def product(n: int = 6, m: int = 16, k: int = 10) -> list[Tensor]:
    a, b = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis(k, "r")
    return [a, b, te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "C")]


@pytest.fixture(scope="module")
def multiply() -> KernelFunction:
    made = build(product())
    assert isinstance(made, KernelFunction)
    return made


@pytest.fixture
def arrays(multiply: KernelFunction) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((6, 10), np.float32), rng.standard_normal((10, 16), np.float32)
    return [*multiply.prepared(a, b), *multiply.outputs()]


def test_tensors_a_graph_and_a_task_are_built(arrays: list[np.ndarray]) -> None:
    dag = ComputeDAG(product())
    task = SearchTask("product", dag, Target.host(), HardwareParams(2))
    steps = (Split(2, 1, 16, (8,)), Annotate(2, 2, Annotation.VECTORIZE), Annotate(2, 0, Annotation.PARALLEL))
    a, b, c = arrays
    for function in (build(product()), build(dag, steps), build(task, steps, "other")):
        c.fill(0)
        function(a, b, c, threads=2)
        np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-6)


def test_a_state_stands_for_its_steps(arrays: list[np.ndarray]) -> None:
    dag = ComputeDAG(product())
    state, _ = split(State.initial(dag), "C", "j", [8])
    program = auto_scheduler.ComputeDAG(product()).get_init_state()
    program.split("C", "j", [8])
    a, b, c = arrays
    for function in (build(dag, state), build(program.value.dag, program)):
        c.fill(0)
        function(a, b, c)
        np.testing.assert_allclose(c, a @ b, rtol=1e-5)


def test_packed_weights_are_prepared() -> None:
    a, b = te.placeholder((6, 10), name="A"), te.placeholder((10, 16), name="B")
    r = te.reduce_axis(10, "r")
    c = te.compute((6, 16), lambda i, j: te.sum(a[i, r] * b[r, j], r), "C", {"layout_free_placeholders": (b,)})
    function = build([a, b, c], (Split(2, 1, 16, (8,)), Reorder(2, (1, 0, 3, 2))))
    assert function.args[1].packing is not None
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((6, 10), np.float32), rng.standard_normal((10, 16), np.float32)
    (out,) = function.outputs()
    function(*function.prepared(left, right), out)
    np.testing.assert_allclose(out, left @ right, rtol=1e-5, atol=1e-6)
    out[...] = 0
    function(left, right, out)  # packed in the call
    np.testing.assert_allclose(out, left @ right, rtol=1e-5, atol=1e-6)
    with pytest.raises(ArtifactError, match=r"argument B: expected float32\[10, 16\], got float32\[16, 10\]"):
        function(left, aligned_copy(right.T), out)


def _unaligned(array: np.ndarray) -> np.ndarray:
    room = aligned_array((array.size + 1,), array.dtype.name)
    moved = room[1:].reshape(array.shape)
    moved[...] = array
    return moved


def _read_only(array: np.ndarray) -> np.ndarray:
    frozen = aligned_copy(array)
    frozen.flags.writeable = False
    return frozen


def _wide(array: np.ndarray) -> np.ndarray:
    return aligned_array((array.shape[0], array.shape[1] * 2), array.dtype.name)[:, ::2]


@pytest.mark.parametrize(
    ("place", "change", "words"),
    [
        (0, lambda a: a.astype("float64"), "argument A: expected 60 elements of float32, got 60 of float64"),
        (0, lambda a: a.astype(">f4"), "got 60 of >f4"),
        (0, lambda a: aligned_copy(a[:5]), "got 50 of float32"),
        (0, lambda a: aligned_copy(a.T), r"argument A: expected the shape \[6, 10\], got \[10, 6\]"),
        (0, lambda a: aligned_copy(a.reshape(-1)), r"expected the shape \[6, 10\], got \[60\]"),
        (2, _read_only, "argument C: the array is read-only, and the kernel writes to it"),
        (0, lambda a: a.tolist(), "argument A: expected a NumPy array, or one with DLPack, got list"),
        (1, lambda _: None, "argument B: expected a NumPy array, or one with DLPack, got NoneType"),
        (1, lambda _: 1.5, "argument B: expected a NumPy array, or one with DLPack, got float"),
        (2, lambda _: -64, "argument C: expected a NumPy array, or one with DLPack, got int"),
    ],
)
def test_an_array_that_does_not_fit_is_named(
    multiply: KernelFunction, arrays: list[np.ndarray], place: int, change: Any, words: str
) -> None:
    arrays[place] = change(arrays[place])
    with pytest.raises(ArtifactError, match=words):
        multiply(*arrays)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("change", [_unaligned, np.asfortranarray, _wide, nd.array])
def test_arrays_with_gaps_without_alignment_or_of_another_library_compute_the_same(
    multiply: KernelFunction, arrays: list[np.ndarray], place: int, change: Any
) -> None:
    multiply(*arrays)
    wanted = arrays[2].copy()
    arrays[2][...] = 0
    changed = change(arrays[place])
    if change is _wide:
        changed[...] = arrays[place]
    multiply(*arrays[:place], changed, *arrays[place + 1 :])
    result = changed if place == 2 else arrays[2]
    np.testing.assert_array_equal(result if isinstance(result, np.ndarray) else result.numpy(), wanted)


@pytest.mark.parametrize("value", [64, True, "abc", None, [1.0], 2.5])
def test_what_is_no_array_is_refused(value: Any, multiply: KernelFunction, arrays: list[np.ndarray]) -> None:
    """An address too: nobody would know what lies there."""
    with pytest.raises(ArtifactError, match="argument A: expected a NumPy array, or one with DLPack, got"):
        multiply(value, *arrays[1:])


def test_inputs_may_be_read_only(multiply: KernelFunction, arrays: list[np.ndarray]) -> None:
    a, b, c = arrays
    multiply(_read_only(a), b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-6)


def test_what_is_written_shares_no_memory() -> None:
    x = te.placeholder((64,), name="x")
    y = te.placeholder((64,), name="y")
    added = build([x, y, te.compute((64,), lambda i: x[i] + y[i], "z")])
    room = aligned_array((128,), "float32")
    room.fill(1)
    with pytest.raises(ArtifactError, match="the arguments x and z share memory"):
        added(room[:64], room[64:], room[:64])
    with pytest.raises(ArtifactError, match="the arguments y and z share memory"):
        added(room[:64], room[32:96], room[64:])
    (z,) = added.outputs()
    added(room[:64], room[:64], z)  # one array read twice is fine
    assert (z == 2).all()


def test_the_number_of_arguments_and_threads(multiply: KernelFunction, arrays: list[np.ndarray]) -> None:
    with pytest.raises(ArtifactError, match=r"takes 3 buffers, 2 are given; they are A, B, C \(written\)"):
        multiply(*arrays[:2])
    with pytest.raises(ArtifactError, match="takes 3 buffers, 4 are given"):
        multiply(*arrays, aligned_array((8,), "float32"))
    with pytest.raises(ArtifactError, match="takes 2 buffers, 1 are given"):
        multiply.prepared(arrays[0])
    with pytest.raises(ArtifactError, match=r"argument B: expected float32\[10, 16\], got float64\[10, 16\]"):
        multiply.prepared(arrays[0], arrays[1].astype("float64"))
    bad: Any
    for bad in (0, -1, 1.5, True, "2", 1 << 40):
        with pytest.raises(ArtifactError, match="threads; an integer"):
            multiply(*arrays, threads=bad)


@pytest.mark.parametrize("name", ["", "a b", "2d", "a.b", "é", 'a"b', "a\nb", "x)"])
def test_a_kernel_has_the_name_of_a_function(name: str) -> None:
    with pytest.raises(LoweringError, match="a kernel cannot be called"):
        build(product(), name=name)


@pytest.mark.parametrize("odd", ["a b", "é", "%x", 'quo"te', "x@y.z", "select", "i", "x" * 300, "日本"])
def test_tensors_may_have_odd_names(odd: str) -> None:
    x = te.placeholder((12,), name=odd)
    inner = te.compute((12,), lambda i: x[i] * 2.0, odd)
    k = te.reduce_axis(12, odd) if "@" not in odd else te.reduce_axis(12)
    total = te.compute((3,), lambda i: te.sum(inner[k] + 0.0 * te.cast("float32", i), k), odd) if odd != "i" else None
    outer = total or te.compute((3,), lambda j: inner[j], odd)
    function = build([x, outer], (Annotate(1, 0, Annotation.VECTORIZE),))
    (value,) = function.prepared(np.ones(12, np.float32))
    (out,) = function.outputs()
    function(value, out)
    assert (out == (24.0 if total else 2.0)).all()


@pytest.mark.parametrize(
    "steps",
    [
        (Split(2, 0, 6, (0,)),),
        (Split(2, 0, 6, (-4,)),),
        (Split(2, 0, 6, (1 << 70,)),),
        (Split(2, 0, 6, (1 << 40, 1 << 40)),),
        (Split(2, 0, -6, (2,)),),
        (Split(2, 0, 6, (2,) * 400),),
        (Split(2, -1, 6, (2,)),),
        (Split(-1, 0, 6, (2,)),),
        (Fuse(2, (0, 0)),),
        (Fuse(2, (5, 6)),),
        (Reorder(2, (0, 1)),),
        (Pragma(2, 0, "auto_unroll_max_step$-1"),),
        (Pragma(2, 0, "auto_unroll_max_step$x"),),
        (Pragma(2, 0, "auto_unroll_max_step$" + "9" * 30),),
    ],
)
def test_extreme_steps_are_refused_or_right(steps: tuple[Step, ...]) -> None:
    try:
        function = build(product(), steps)
    except RetuneError:
        return
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((6, 10), np.float32), rng.standard_normal((10, 16), np.float32)
    (out,) = function.outputs()
    function(*function.prepared(a, b), out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-6)


def test_a_result_larger_than_memory() -> None:
    x = te.placeholder((4,), name="x")
    huge = build([x, te.compute((1 << 44,), lambda i: x[i % 4], "huge")])
    with pytest.raises(ArtifactError, match="no memory for an array"):
        huge.outputs()
    y = te.compute((1 << 44,), lambda i: x[i % 4], "huge")
    inner = build([x, te.compute((4,), lambda i: y[i], "few")], ())
    with pytest.raises(ArtifactError, match="no memory for an array"):
        inner(*inner.prepared(np.zeros(4, np.float32)), *inner.outputs())


def test_expressions_nested_too_deep_are_refused() -> None:
    x = te.placeholder((4,), name="x")

    def nested(depth: int) -> list[Tensor]:
        def body(i: Expr) -> Expr:
            value: Expr = x[i]
            for _ in range(depth):
                value = te.maximum(value, 0.0) * 2.0
            return value

        return [x, te.compute((4,), body, "y")]

    assert build(nested(20)).args[1].name == "y"
    with pytest.raises(RetuneError, match="nested too deep"):
        build(nested(400))
    with pytest.raises(DefinitionError, match="y: its expressions are nested too deep"):
        nested(4000)
    last = x
    for _ in range(400):
        last = te.compute((4,), lambda i, last=last: last[i] + 1.0, "next")
    with pytest.raises(LoweringError, match="inlined into one another"):
        build([x, last])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the CPU is an x86 one")
def test_float16_on_a_cpu_without_instructions_for_it() -> None:
    x = te.placeholder((37,), "float16", name="x")
    kernel = build([x, te.compute((37,), lambda i: x[i] * 2.0 + 0.5, "y")], target=Target("llvm -mcpu=x86-64"))
    value = np.linspace(-3, 3, 37).astype("float16")
    (result,) = kernel.outputs()
    kernel(*kernel.prepared(value), result)
    np.testing.assert_array_equal(result, value * np.float16(2.0) + np.float16(0.5))


def test_steps_for_another_graph_are_refused() -> None:
    with pytest.raises(ScheduleError, match="no stage 7"):
        build_kernel(SearchTask("p", ComputeDAG(product()), Target.host(), HardwareParams(1)), [Fuse(7, (0, 1))], "k")


def test_a_function_is_timed_as_modules_are(multiply: KernelFunction, arrays: list[np.ndarray]) -> None:
    result = multiply.time_evaluator(multiply.entry_name, number=2, repeat=3)(*arrays)
    assert len(result.results) == 3
    assert min(result.results) > 0
    with pytest.raises(AttributeError, match="there is no 'other'"):
        multiply.time_evaluator("other")


def test_a_module_is_built_of_a_schedule_in_the_order_of_tvm() -> None:
    a, b = te.placeholder((6, 10), name="A"), te.placeholder((10, 16), name="B")
    r = te.reduce_axis(10, "r")
    c = te.compute((6, 16), lambda i, j: te.sum(a[i, r] * b[r, j], r), "C", {"layout_free_placeholders": (b,)})
    schedule = auto_scheduler.ComputeDAG([a, b, c]).get_init_state()
    left, right = np.random.rand(6, 10).astype("float32"), np.random.rand(10, 16).astype("float32")
    for module in (
        compiler.build(schedule, [a, b, c], "llvm"),
        compiler.build(schedule, [a, b, c], target="llvm", name="product"),
        compiler.build([a, b, c], "llvm"),
    ):
        x, y, z = nd.array(left), nd.array(right), nd.empty((6, 16))
        module[module.entry_name](x, y, z)  # an input of free layout is read as it is
        np.testing.assert_allclose(z.numpy(), left @ right, rtol=1e-5)
