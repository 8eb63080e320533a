"""Recurrences: their meaning, what is refused, and how they are scheduled and compiled."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.codegen.scan_loop import barriers, parts_of
from retune.compiler.core.errors import DefinitionError, ScheduleError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build, build_kernel
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.ir.stmt import For, LoopKind, walk_stmt
from retune.compiler.lower.pipeline import lower
from retune.compiler.measure.remote.wire import from_bytes, to_bytes
from retune.compiler.runtime.artifact import kernel_of, kernel_row
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.primitives import compute_inline, parallel, split
from retune.compiler.schedule.state import State, replay
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.tensor import Tensor

HARDWARE = HardwareParams(num_cores=2, vector_unit_bytes=64, vector_registers=32)


def running_sum(steps: int = 6, width: int = 5) -> tuple[Tensor, Tensor]:
    """An input, and the sums of its rows so far."""
    x = te.placeholder((steps, width), name="x")
    state = te.placeholder((steps, width), name="state")
    first = te.compute((1, width), lambda t, i: x[t, i], "first")
    update = te.compute((steps, width), lambda t, i: state[t - 1, i] + x[t, i], "update")
    return x, te.scan(first, update, state)


def recurrent(steps: int, rows: int, width: int) -> tuple[list[Tensor], Tensor]:
    """A recurrent layer with a large product: its inputs and the states."""
    x, weight = te.placeholder((steps, rows, width), name="x"), te.placeholder((width, width), name="w")
    state, k = te.placeholder((steps, rows, width), name="h"), te.reduce_axis(width, "k")
    attrs = {"layout_free_placeholders": (weight,)}
    product = te.compute(
        (steps, rows, width), lambda t, i, j: te.sum(state[t - 1, i, k] * weight[k, j], [k]), "product", attrs
    )
    last = width - 1
    update = te.compute((steps, rows, width), lambda t, i, j: te.tanh(product[t, i, last - j] + x[t, i, j]), "update")
    first = te.compute((1, rows, width), lambda t, i, j: x[t, i, j], "first")
    return [x, weight], te.scan(first, update, state, name="rnn")


def has_barriers(dag: ComputeDAG) -> bool:
    task = SearchTask("scan", dag, Target.host(), hardware_of(Target.host(), 2))
    return b"GOMP_barrier" in build_kernel(task, default_steps(dag), "kernel").object_code


def test_scan_sums_step_by_step() -> None:
    x, total = running_sum()
    rows = np.arange(30, dtype="float32").reshape(6, 5)
    np.testing.assert_array_equal(evaluate([total], {x: rows})[0], np.cumsum(rows, axis=0))


def test_default_schedule_of_a_scan_computes_it() -> None:
    x, total = running_sum(40, 33)
    dag = ComputeDAG([x, total])
    kernel = build(dag, default_steps(dag))
    rows = np.random.default_rng(0).standard_normal((40, 33)).astype("float32")
    (result,) = kernel.outputs()
    kernel(*kernel.prepared(rows), result)
    np.testing.assert_allclose(result, np.cumsum(rows, axis=0), rtol=1e-5, atol=1e-5)


def test_scan_reads_as_far_back_as_it_has_first_values() -> None:
    state, init = te.placeholder((10,), "int64", "f"), te.placeholder((2,), "int64", "init")
    update = te.compute((10,), lambda t: state[t - 1] + state[t - 2], "update")
    fibonacci = te.scan(init, update, state)
    ones = np.ones(2, "int64")
    assert evaluate([fibonacci], {init: ones})[0].tolist() == [1, 1, 2, 3, 5, 8, 13, 21, 34, 55]
    with pytest.raises(DefinitionError, match=r"reads f\[.*a step t reads a state at t - 1$"):
        te.scan(te.compute((1,), lambda t: init[t], "one"), update, state)


def test_several_states_are_updated_together() -> None:
    a, b = (te.placeholder((4, 3), name=name) for name in "ab")
    init = te.placeholder((1, 3), name="init")
    swapped = te.compute((4, 3), lambda t, i: (b[t - 1, i], a[t - 1, i] + 1.0), "swapped")
    first, second = te.scan([init, init], swapped, [a, b])
    zeros = np.zeros((1, 3), "float32")
    assert [value[:, 0].tolist() for value in evaluate([first, second], {init: zeros})] == [[0, 0, 1, 1], [0, 1, 1, 2]]


def test_steps_hold_the_loops_and_weights_are_packed_once() -> None:
    inputs, states = recurrent(4, 2, 64)
    dag = ComputeDAG([*inputs, states])
    function = lower(replay(dag, default_steps(dag, HARDWARE)), "kernel", HARDWARE, check=True)
    (steps,) = (stmt for stmt in walk_stmt(function.body) if isinstance(stmt, For) and stmt.kind is LoopKind.STEPS)
    assert steps.extent == 3
    assert [name for name, _ in function.packings] == ["w"]
    assert [buffer.name for buffer in function.workspace] == ["product"]  # one step's, and no copy of the states
    assert function.workspace[0].shape == (2, 64)


def test_threads_share_large_products_alone_and_wait_for_each_other() -> None:
    inputs, states = recurrent(4, 8, 256)
    dag = ComputeDAG([*inputs, states])
    function = lower(replay(dag, default_steps(dag, HARDWARE)), "kernel", HARDWARE)
    (steps,) = (stmt for stmt in walk_stmt(function.body) if isinstance(stmt, For) and stmt.kind is LoopKind.STEPS)
    parts = parts_of(steps, 64)
    assert len(parts) == 2
    assert parts[0].extent > 1
    assert barriers(parts) == {1}
    assert has_barriers(dag)
    inputs, states = recurrent(4, 1, 16)
    assert not has_barriers(ComputeDAG([*inputs, states]))


def test_a_kernel_tells_the_work_of_a_single_thread_and_of_all() -> None:
    for size, is_shared in ((16, False), (256, True)):
        inputs, states = recurrent(4, 8, size)
        dag = ComputeDAG([*inputs, states])
        task = SearchTask("steps", dag, Target.host(), hardware_of(Target.host(), 2))
        kernel = build_kernel(task, default_steps(dag), "kernel")
        alone, shared = kernel.work
        assert (shared > alone) == is_shared
        assert kernel_of(kernel_row(kernel), kernel.object_code) == kernel


def test_flops_count_every_step() -> None:
    x, total = running_sum(6, 5)
    assert ComputeDAG([x, total]).flop_count == 5 * 5


def test_key_and_message_of_a_scan_are_those_of_its_definition() -> None:
    dags = [ComputeDAG(list(running_sum(6, 5))) for _ in range(2)]
    assert dags[0].workload_key == dags[1].workload_key
    assert dags[0].workload_key != ComputeDAG(list(running_sum(7, 5))).workload_key
    task = SearchTask("scan", dags[0], Target.host(), hardware_of(Target.host(), 1))
    copy = from_bytes(to_bytes(task))
    assert copy.dag.workload_key == dags[0].workload_key
    assert build_kernel(copy, default_steps(copy.dag), "kernel").object_code


def test_scan_rejects_what_does_not_fit() -> None:
    x, init = te.placeholder((6, 5), name="x"), te.placeholder((1, 5), name="init")
    state = te.placeholder((6, 5), name="state")
    update = te.compute((6, 5), lambda t, i: state[t - 1, i] + x[t, i], "update")
    other = te.compute((6, 5), lambda t, i: update[5 - t, i], "other")
    again = te.compute((6, 5), lambda t, i: state[t, i], "again")
    flat = te.compute((5,), lambda i: state[0, i], "flat")
    wide = te.compute((6, 5), lambda t, i: flat[i] + x[t, i], "wide")
    pair = te.compute((6, 5), lambda t, i: (state[t - 1, i], x[t, i]), "pair")
    for arguments, message in (
        (([init, init], update, state), "2 first values and 1 updates of 1 states"),
        ((init, update, x + 1.0), "a state is a placeholder"),
        ((init, x, state), "its update a compute"),
        ((x, update, state), "leaves no step"),
        ((init, te.compute((6, 4), lambda t, i: state[t - 1, i], "narrow"), state), "do not fit the state"),
        ((te.placeholder((1, 5), "int32"), update, state), "another type"),
        ((init, other, state), "only its own elements"),
        ((init, again, state), "reads a state at t - 1"),
        ((init, wide, state), "its first axis must run over the 6 steps"),
        ((init, pair[0], state), "has a result that updates no state"),
        ((init, "update", state), "no tensor and no list of tensors"),
    ):
        with pytest.raises(DefinitionError, match=message):
            te.scan(*arguments)


def test_only_computes_run_in_a_step() -> None:
    state = te.placeholder((6, 5), name="state")
    called = te.extern((6, 5), [state], lambda ins, outs: te.call_packed("double", ins[0], outs[0]), "called")
    update = te.compute((6, 5), lambda t, i: called[t, i], "update")
    with pytest.raises(DefinitionError, match="called reads a state but is no compute; only computes run in a step"):
        te.scan(te.placeholder((1, 5)), update, state)


def test_graph_rejects_earlier_elements_of_an_input_and_parts_of_steps() -> None:
    x = te.placeholder((6, 5), name="x")
    late = te.compute((6, 5), lambda t, i: x[t - 1, i], "late")
    with pytest.raises(DefinitionError, match=r"late: index 0 of x.*runs from -1 to 4"):
        ComputeDAG([x, late])
    _, total = running_sum()
    with pytest.raises(DefinitionError, match="state is a part of the steps of scan; list the scan's result"):
        ComputeDAG([total.op.states[0], total])  # type: ignore[union-attr]


def test_steps_leave_states_in_memory() -> None:
    x, total = running_sum()
    dag = ComputeDAG([x, total])
    state = State.initial(dag)
    with pytest.raises(ScheduleError, match="update: cannot inline it: it is a state of the scan scan"):
        compute_inline(state, "update")
    with pytest.raises(ScheduleError, match="scan: it is a scan and has no loops to transform"):
        split(state, "scan", 0, [2])
    assert "scan = scan(update)" in str(parallel(state, "update", 0)[0])
