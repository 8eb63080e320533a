"""Stages that call registered functions: definition, oracle, kernels, other processes, errors."""

import pickle
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import ArtifactError, DefinitionError, RegistryError, ScheduleError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.lower.pipeline import lower
from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.runtime.artifact import Array, KernelArtifact
from retune.compiler.runtime.buffers import aligned_array, aligned_copy
from retune.compiler.runtime.ffi.registry import get_global_func, register_func, remove_global_func
from retune.compiler.runtime.loader import BoundKernel, load_kernels
from retune.compiler.schedule import primitives as s
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import Annotate, Split, Step, steps_of
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.evaluate import evaluate
from tests.support.property.checks import check

NAME = "tests.sort_rows"
HARDWARE = HardwareParams(2)


def sort_rows(source: Array, keys: Array, values: Array, scale: float, text: str) -> str:
    """Sorts, and checks what it is given."""
    assert not source.flags.writeable
    assert keys.flags.writeable
    assert (source.dtype, keys.dtype, values.dtype) == tuple(map(np.dtype, ("float32", "int64", "float32")))
    assert source.shape == keys.shape == values.shape
    if text != "ascending":
        raise KeyError(text)
    keys[...] = np.argsort(source, axis=1, kind="stable")
    values[...] = np.sort(source, axis=1) * scale
    return "ignored"


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register_func(NAME, sort_rows, override=True)
    yield
    if get_global_func(NAME, allow_missing=True) is not None:
        remove_global_func(NAME)


def sorted_rows(n: int = 5, m: int = 9, text: str = "ascending") -> ComputeDAG:
    """A function between a stage that it reads and two stages that read it."""
    x = te.placeholder((n, m), name="x")
    y = te.compute((n, m), lambda i, j: te.abs(x[i, j]) + 1.0, "y")
    keys, values = te.extern(
        [(n, m), (n, m)],
        [y],
        lambda ins, outs: te.call_packed(NAME, ins[0], outs[0], outs[1], 2.0, text),
        name="sorted",
        dtype=["int64", "float32"],
    )
    low = te.compute((n,), lambda i: values[i, 0] * 0.5, "low")
    return ComputeDAG([x, low, te.compute((n, m), lambda i, j: te.cast("float32", keys[i, j]) + values[i, j], "both")])


def bound(dag: ComputeDAG, steps: tuple[Step, ...] = ()) -> tuple[BoundKernel, list[Array]]:
    artifact = built(dag, steps)
    arrays = [aligned_array(spec.shape, spec.dtype) for spec in artifact.args]
    for array in arrays:
        array[...] = 0
    return load_kernels([artifact])["kernel"].bind(arrays, 1), arrays


def built(dag: ComputeDAG, steps: tuple[Step, ...] = ()) -> KernelArtifact:
    return build_kernel(SearchTask("extern", dag, Target.host(), HARDWARE), steps, "kernel")


def test_the_graph_and_its_program_are_printed_with_the_call() -> None:
    dag = sorted_rows(2, 3)
    assert "sorted = EXTERN [2, 3] int64, [2, 3] float32 tests.sort_rows(y, v0, v1, 2.0, 'ascending')" in str(dag)
    state = State.initial(dag)
    assert "sorted = tests.sort_rows(y, sorted.v0, sorted.v1, 2.0, 'ascending')" in str(state)
    loops = str(lower(state, "kernel", HARDWARE, check=True))
    assert "\n  tests.sort_rows(y, sorted.v0, sorted.v1, 2.0, 'ascending')\n" in loops
    assert dag.workload_key != sorted_rows(2, 3, "descending").workload_key
    assert pickle.loads(pickle.dumps(dag)).workload_key == dag.workload_key


@pytest.mark.parametrize("threads", [1, 2])
def test_stages_around_an_extern_call_can_be_scheduled(threads: int) -> None:
    dag = sorted_rows()
    y, low, both = dag.id_of(dag.outputs[0]) - 2, dag.id_of(dag.outputs[0]), dag.id_of(dag.outputs[1])
    assert dag.ops[y].name == "y"
    check(dag, (), np.random.default_rng(0), threads)
    check(dag, default_steps(dag), np.random.default_rng(1), threads)
    steps = (Split(both, 1, 9, (4,)), Annotate(both, 2, 2), Annotate(y, 1, 2), Annotate(y, 0, 3), Annotate(low, 0, 3))
    check(dag, steps, np.random.default_rng(2), threads)


def test_a_call_of_its_own_with_one_result_works_on_the_callers_memory() -> None:
    seen: list[int] = []

    def note(source: Array, result: Array, count: int) -> None:
        seen.append(result.ctypes.data)
        result[...] = source.sum() + count

    register_func("tests.note", note, override=True)
    x = te.placeholder((3, 4), "int32", name="x")
    total = te.extern((), [x], lambda ins, outs: te.call_packed("tests.note", *ins, *outs, 7), name="total")
    kernel, (source, result) = bound(ComputeDAG([x, total]))
    source[...] = 2
    kernel()
    assert result == 31
    assert seen == [result.ctypes.data]
    assert evaluate([total], {x: source})[0] == 31
    remove_global_func("tests.note")
    kernel()  # what was loaded stays


def test_what_the_function_raises_reaches_the_caller_every_time() -> None:
    kernel, arrays = bound(sorted_rows(text="descending"))
    arrays[1][...] = arrays[2][...] = -1
    for _ in range(2):
        with pytest.raises(KeyError, match="descending"):
            kernel()
    assert (arrays[1] == -1).all()  # the stages behind it did not run


def test_errors_of_two_threads_do_not_mix() -> None:
    def fail(number: Array, _: Array) -> None:
        barrier.wait(timeout=120)
        raise ValueError(f"number {int(number[0])}")

    barrier = threading.Barrier(2)
    register_func("tests.fail", fail, override=True)
    x = te.placeholder((1,), "int32", name="x")
    y = te.extern((1,), [x], lambda ins, outs: te.call_packed("tests.fail", *ins, *outs), name="y")
    kernel = load_kernels([built(ComputeDAG([x, y]))])["kernel"]
    found: dict[int, str] = {}

    def run(number: int) -> None:
        call = kernel.bind([aligned_copy(np.array([number], np.int32)), aligned_array((1,), "int32")], 1)
        try:
            call()
        except ValueError as error:
            found[number] = str(error)

    workers = [threading.Thread(target=run, args=(number,)) for number in (3, 4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    remove_global_func("tests.fail")
    assert found == {3: "number 3", 4: "number 4"}


def run_elsewhere(artifact: KernelArtifact, register: bool) -> Array:
    """What another process makes of a kernel that was shipped to it."""
    if register:
        register_func(NAME, sort_rows, override=True)
    arrays = [aligned_array(spec.shape, spec.dtype) for spec in artifact.args]
    arrays[0][...] = np.arange(arrays[0].size)[::-1].reshape(arrays[0].shape)
    load_kernels([artifact])["kernel"].bind(arrays, 1)()
    return arrays[1]


def test_a_kernel_shipped_to_another_process_needs_the_function_there() -> None:
    artifact = built(sorted_rows())
    with WorkerProcess() as worker:
        with pytest.raises(ArtifactError, match=r"calls the function tests\.sort_rows, which is not registered"):
            worker.call(f"{__name__}:run_elsewhere", artifact, False, timeout_s=60)
        low = worker.call(f"{__name__}:run_elsewhere", artifact, True, timeout_s=60)
    np.testing.assert_array_equal(low, [37, 28, 19, 10, 1])


def test_steps_on_a_call_are_refused_by_name() -> None:
    state = State.initial(sorted_rows())
    for change in (
        lambda: s.split(state, "sorted", 0, [2]),
        lambda: s.compute_inline(state, "sorted"),
        lambda: s.compute_root(state, "sorted"),
        lambda: s.compute_at(state, "sorted", "both", 0),
        lambda: s.cache_write(state, "sorted"),
        lambda: s.storage_align(state, "sorted", 0, 8, 0),
    ):
        with pytest.raises(ScheduleError, match=r"sorted: it calls the function tests\.sort_rows"):
            change()
    with pytest.raises(ScheduleError, match="y: sorted calls a function and has no loops"):
        s.compute_at(state, "y", "sorted", 0)
    with pytest.raises(ScheduleError, match="y: sorted is a function's call"):
        s.cache_read(state, "y", "local", ["sorted"])
    for change in (lambda: s.compute_inline(state, "y"), lambda: s.storage_align(state, "y", 0, 16, 4)):
        with pytest.raises(ScheduleError, match=r"y: cannot .*: sorted gives it to the function"):
            change()


def test_a_result_of_a_call_can_be_cached_for_a_reader() -> None:
    dag = sorted_rows()
    state, copy = s.cache_read(State.initial(dag), "sorted", "local", ["both"])
    state = s.compute_at(state, copy, "both", "i")
    check(dag, steps_of(state), np.random.default_rng(4), 1)


def test_malformed_definitions_say_what_is_wrong() -> None:
    x, y = te.placeholder((3,), name="x"), te.placeholder((3,), "int32", name="y")
    with pytest.raises(DefinitionError, match="does not take the result z"):
        te.extern((3,), [x], lambda ins, _: te.call_packed(NAME, *ins), name="z")
    with pytest.raises(DefinitionError, match="must return call_packed"):
        te.extern((3,), [x], lambda *_: None, name="z")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"say the dtype of its results; the inputs have \['float32', 'int32'\]"):
        te.extern((3,), [x, y], lambda ins, outs: te.call_packed(NAME, *ins, *outs))
    with pytest.raises(DefinitionError, match="2 results have 3 dtypes"):
        te.extern([(3,), (4,)], [x], lambda _, outs: te.call_packed(NAME, *outs), dtype=["int8"] * 3)
    with pytest.raises(DefinitionError, match="positive integers"):
        te.extern((3, 0), [x], lambda _, outs: te.call_packed(NAME, *outs))
    with pytest.raises(DefinitionError, match="argument 0 is Tensor"):
        te.call_packed(NAME, x)  # type: ignore[arg-type]
    z = te.extern((3,), [x], lambda ins, outs: te.call_packed("tests.nobody", *ins, *outs), name="z")
    with pytest.raises(RegistryError, match=r"no function tests\.nobody is registered"):
        evaluate([z], {x: np.zeros(3, np.float32)})
