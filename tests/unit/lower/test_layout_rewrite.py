"""The layout of a constant follows the loops that read it: in the graph, in its own stage, or in the kernel."""

from collections.abc import Sequence

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.lower.layout_rewrite import TRANSFORM, relayouts, rewrite_layout
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule import primitives as s
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.state import State, replay
from retune.compiler.schedule.steps import Step, steps_of
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.tensor import Tensor

NONE, INSERT, PRE = LayoutRewriteOption


def matmul(n: int, m: int, depth: int) -> ComputeDAG:
    a, b = te.placeholder((n, depth), name="A"), te.placeholder((depth, m), name="B")
    k = te.reduce_axis(depth, "k")
    body = te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], k), "C", {"layout_free_placeholders": (b,)})
    return ComputeDAG([a, b, te.compute((n, m), lambda i, j: te.maximum(body[i, j], 0.0), "relu")])


def tiled(dag: ComputeDAG, cached: bool = False, fused: bool = True) -> State:
    """C[i, j] with j = 4 * 8 * 4 * 4 parts in the order of a tuned program."""
    state = State.initial(dag)
    stage: s.StageRef = "C"
    i, j, k = "i", "j", "k"
    if cached:
        state, stage = s.cache_write(state, "C", "local")
        i, j, k = "i_c", "j_c", "k"
    state, rows = s.split(state, stage, i, [2])
    state, columns = s.split(state, stage, j, [2, 4, 4])
    state, depth = s.split(state, stage, k, [4])
    order = [rows[0], columns[0], columns[1], depth[0], columns[2], depth[1], rows[1], columns[3]]
    state = s.reorder(state, stage, order)
    if fused:
        state, _ = s.fuse(state, stage, [rows[0], columns[0]])
    return state


def run(
    dag: ComputeDAG, steps: Sequence[Step], option: LayoutRewriteOption, arrays: Sequence[np.ndarray]
) -> np.ndarray:
    """The result of the kernel that is built for a task with that option, given arrays as its arguments expect."""
    task = SearchTask("t", dag, Target.host(), HardwareParams(2), layout=option)
    artifact = build_kernel(task, steps, "kernel")
    buffers = []
    for spec, array in zip(artifact.inputs, arrays, strict=True):
        buffers.append(aligned_array((spec.size,), spec.dtype))
        buffers[-1][:] = array.ravel() if spec.packing is None else spec.packing.pack(array)
    buffers.append(aligned_array(artifact.outputs[0].shape, artifact.outputs[0].dtype))
    buffers.append(aligned_array((max(artifact.workspace_bytes, 64),), "uint8"))
    load_kernels([artifact])["kernel"].bind(buffers, 2)()
    return buffers[-2]


def values_of(dag: ComputeDAG) -> dict[Tensor, np.ndarray]:
    rng = np.random.default_rng(0)
    return {tensor: rng.integers(-4, 5, tensor.shape).astype(tensor.dtype) for tensor in dag.inputs}


def test_layout_rewrite_gives_a_tiled_matmul_its_shapes() -> None:
    dag = matmul(512, 512, 512)
    state, rows = s.split(State.initial(dag), "C", "i", [4, 8, 8])
    state, columns = s.split(state, "C", "j", [8, 4, 4])
    order = [loop for pair in zip(rows, columns, strict=True) for loop in pair]
    steps = steps_of(s.reorder(state, "C", [*order, "k"]))
    shapes = {option: rewrite_layout(dag, steps, option)[0].inputs[1].shape for option in (NONE, INSERT, PRE)}
    assert shapes == {NONE: (512, 512), INSERT: (512, 512), PRE: (4, 8, 4, 4, 512)}
    reader = rewrite_layout(dag, steps, PRE)[0].ops[2]
    assert reader.attrs["ori_placeholder_layout"] == "512k512j"
    assert reader.attrs["new_placeholder_layout"] == "4j8j4j4j512k"
    assert "layout_free_placeholders" not in reader.attrs


@pytest.mark.parametrize("option", [NONE, INSERT, PRE])
def test_layout_rewrite_takes_a_matmul_of_one_element(option: LayoutRewriteOption) -> None:
    dag = matmul(1, 1, 1)
    state, fused = s.fuse(State.initial(dag), "C", ["i", "j"])
    state, _ = s.parallel(state, "C", fused)
    changed, steps = rewrite_layout(dag, steps_of(state), option)
    assert run(changed, steps, NONE, [np.full((1, 1), 3.0), np.full((1, 1), 4.0)]).tolist() == [[12.0]]


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("option", [INSERT, PRE])
def test_a_program_with_rewritten_layout_computes_the_same(option: LayoutRewriteOption, cached: bool) -> None:
    dag = matmul(6, 64, 32)
    steps = steps_of(tiled(dag, cached))
    values = values_of(dag)
    (expected,) = evaluate(dag.outputs, values)
    changed, rewritten = rewrite_layout(dag, steps, option)
    (change,) = relayouts(dag, steps)
    assert [(digit.extent, digit.axis) for digit in change.digits] == [
        (2, "j"),
        (2, "j"),
        (8, "k"),
        (4, "j"),
        (4, "k"),
        (4, "j"),
    ]
    a, b = (values[tensor] for tensor in dag.inputs)
    given = [a, change.packing.pack(b) if option is PRE else b]
    assert np.array_equal(run(changed, rewritten, NONE, given), expected)
    names = [op.name for op in replay(changed, rewritten).dag.ops]
    assert (TRANSFORM in names) == (option is INSERT)


def conv2d(kernel: int, into: int, out: int, size: int) -> ComputeDAG:
    data = te.placeholder((1, size + kernel - 1, size + kernel - 1, into), name="data")
    weight = te.placeholder((kernel, kernel, into, out), name="weight")
    ry, rx, rc = te.reduce_axis(kernel, "ry"), te.reduce_axis(kernel, "rx"), te.reduce_axis(into, "rc")
    conv = te.compute(
        (1, size, size, out),
        lambda n, y, x, f: te.sum(data[n, y + ry, x + rx, rc] * weight[ry, rx, rc, f], [ry, rx, rc]),
        "C",
        {"layout_free_placeholders": (weight,)},
    )
    return ComputeDAG([data, weight, conv])


def conv3d_1x1x1() -> ComputeDAG:
    data, weight = te.placeholder((1, 4, 3, 3, 8), name="data"), te.placeholder((1, 1, 1, 8, 8), name="weight")
    rc = te.reduce_axis(8, "rc")
    conv = te.compute(
        (1, 4, 3, 3, 8),
        lambda n, z, y, x, f: te.sum(data[n, z, y, x, rc] * weight[0, 0, 0, rc, f], rc),
        "C",
        {"layout_free_placeholders": (weight,)},
    )
    return ComputeDAG([data, weight, conv])


def dense() -> ComputeDAG:
    x, w = te.placeholder((16, 16), name="x"), te.placeholder((24, 16), name="w")
    k = te.reduce_axis(16, "k")
    body = te.compute((16, 24), lambda i, j: te.sum(x[i, k] * w[j, k], k), "C", {"layout_free_placeholders": (w,)})
    return ComputeDAG([x, w, body])


def batch_matmul() -> ComputeDAG:
    x, w = te.placeholder((4, 8, 16), name="x"), te.placeholder((4, 16, 8), name="w")
    k = te.reduce_axis(16, "k")
    attrs = {"layout_free_placeholders": (w,)}
    return ComputeDAG([x, w, te.compute((4, 8, 8), lambda b, i, j: te.sum(x[b, i, k] * w[b, k, j], k), "C", attrs)])


NETWORK_OPERATORS = {
    "conv2d 1x1": lambda: conv2d(1, 32, 32, 6),
    "conv2d 3x3": lambda: conv2d(3, 8, 16, 4),
    "conv3d 1x1x1": conv3d_1x1x1,
    "dense": dense,
    "batch_matmul": batch_matmul,
}


def tiled_by_twos(dag: ComputeDAG) -> State:
    """Every even loop of the last stage split by 2; outer spatial parts, then reductions, then inner parts."""
    state = State.initial(dag)
    outer, inner = [], []
    for iterator in state.stages[-1].iters:
        assert isinstance(iterator.extent, int)
        if iterator.extent % 2:
            outer.append(iterator)
            continue
        state, parts = s.split(state, "C", iterator, [2])
        outer.append(parts[0])
        inner.append(parts[1])
    outer.sort(key=lambda each: each.kind)
    return s.reorder(state, "C", [*outer, *inner])


@pytest.mark.parametrize("operator", NETWORK_OPERATORS)
def test_layout_rewrite_takes_every_operator_of_networks(operator: str) -> None:
    dag = NETWORK_OPERATORS[operator]()
    steps = steps_of(tiled_by_twos(dag))
    values = values_of(dag)
    (expected,) = evaluate(dag.outputs, values)
    given = [values[tensor] for tensor in dag.inputs]
    (change,) = relayouts(dag, steps)
    packed = [given[0], change.packing.pack(given[1])]
    for option in LayoutRewriteOption:
        assert np.array_equal(run(dag, steps, option, given), expected)
        changed, rewritten = rewrite_layout(dag, steps, option)
        assert np.array_equal(run(changed, rewritten, NONE, packed if option is PRE else given), expected)
    built = build_kernel(SearchTask("t", dag, Target.host(), HardwareParams(1)), steps, "k").args[1].packing
    assert built is not None
    assert np.array_equal(built.pack(given[1]), packed[1])


def test_the_kernel_of_a_task_packs_as_its_option_says() -> None:
    dag = matmul(6, 64, 32)
    steps = steps_of(tiled(dag))
    values = values_of(dag)
    (expected,) = evaluate(dag.outputs, values)
    given = [values[tensor] for tensor in dag.inputs]
    found = {}
    for option in LayoutRewriteOption:
        task = SearchTask("t", dag, Target.host(), HardwareParams(2), layout=option)
        artifact = build_kernel(task, steps, "k")
        found[option] = (artifact.args[1].packing is not None, artifact.workspace_bytes >= given[1].nbytes)
        assert np.array_equal(run(dag, steps, option, given), expected)
    assert found[NONE][0] is False
    assert found[INSERT] == (False, True)
    assert found[PRE][0] is True


def test_readers_of_a_cache_are_renumbered_with_the_inserted_stage() -> None:
    dag = matmul(6, 64, 32)
    state = tiled(dag, fused=False)
    state, cache = s.cache_read(state, "A", "local", ["C"])
    state = s.compute_at(state, cache, "C", "k.0")
    steps = steps_of(state)
    changed, rewritten = rewrite_layout(dag, steps, INSERT)
    assert [step.to_row() for step in rewritten if step.to_row()[0] in ("CHR", "CA")] == [
        ["CHR", 0, "local", [3]],
        ["CA", 1, 4, 3],
    ]
    after = replay(changed, rewritten)
    assert [op.name for op in after.dag.ops] == ["A", "A.local", "B", TRANSFORM, "C", "relu"]
    assert after.stages[3].iters[0].name == "j_0@j_1@k_2@"
    values = values_of(dag)
    (expected,) = evaluate(dag.outputs, values)
    assert np.array_equal(run(changed, rewritten, NONE, [values[tensor] for tensor in dag.inputs]), expected)


def test_two_constants_of_one_reader() -> None:
    a, b, c = te.placeholder((8, 8), name="A"), te.placeholder((8, 8), name="B"), te.placeholder((8, 8), name="C")
    k = te.reduce_axis(8, "k")
    attrs = {"layout_free_placeholders": (b, c)}
    d = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * b[k, j] * c[k, j], k), "D", attrs)
    dag = ComputeDAG([a, b, c, d])
    state, parts = s.split(State.initial(dag), "D", "j", [4])
    steps = steps_of(s.reorder(state, "D", [parts[0], "k", "i", parts[1]]))
    values = values_of(dag)
    (expected,) = evaluate(dag.outputs, values)
    given = [values[tensor] for tensor in dag.inputs]
    changes = relayouts(dag, steps)
    packed = [given[0], *(change.packing.pack(array) for change, array in zip(changes, given[1:], strict=True))]
    for option in (INSERT, PRE):
        changed, rewritten = rewrite_layout(dag, steps, option)
        assert len(replay(changed, rewritten).stages) == (6 if option is INSERT else 4)
        again = ComputeDAG([*changed.inputs, *changed.outputs])
        assert [op.name for op in again.ops] == [op.name for op in changed.ops]
        assert np.array_equal(run(changed, rewritten, NONE, packed if option is PRE else given), expected)
        assert np.array_equal(run(dag, steps, option, given), expected)


def test_a_graph_of_the_tensors_numbers_its_stages_alike() -> None:
    x, w, v = te.placeholder((8, 8), name="x"), te.placeholder((8, 8), name="w"), te.placeholder((8, 8), name="v")
    k, q = te.reduce_axis(8, "k"), te.reduce_axis(8, "q")
    first = te.compute((8, 8), lambda i, j: te.sum(w[k, j] * x[i, k], k), "first", {"layout_free_placeholders": (w,)})
    second = te.compute(
        (8, 8), lambda i, j: te.sum(v[q, j] * first[i, q], q), "second", {"layout_free_placeholders": (v,)}
    )
    dag = ComputeDAG([x, w, v, second])
    assert [op.name for op in dag.ops] == ["v", "w", "x", "first", "second"]
    state = State.initial(dag)
    for stage, loop in (("first", "k"), ("second", "q")):
        state, parts = s.split(state, stage, "j", [4])
        state = s.reorder(state, stage, [parts[0], loop, "i", parts[1]])
    changed, steps = rewrite_layout(dag, steps_of(state), INSERT)
    names = ["v", TRANSFORM + "_", "w", TRANSFORM, "x", "first", "second"]
    assert [op.name for op in changed.ops] == names
    again = ComputeDAG([*changed.inputs, *changed.outputs])
    assert [op.name for op in again.ops] == names
    values = values_of(dag)
    (expected,) = evaluate(dag.outputs, values)
    given = [values[tensor] for tensor in dag.inputs]
    assert np.array_equal(run(again, steps, NONE, given), expected)


def test_layouts_that_must_stay_are_not_rewritten() -> None:
    dag = matmul(6, 64, 32)
    state, _ = s.split(State.initial(dag), "C", "j", [48])
    assert relayouts(dag, steps_of(state)) == ()  # the parts are no digits
    state, parts = s.split(State.initial(dag), "C", "j", [8])
    state = s.reorder(state, "C", [parts[1], "i", parts[0], "k"])
    assert relayouts(dag, steps_of(state)) == ()  # the inner digit lies outside
    state, cache = s.cache_read(State.initial(dag), "B", "local", ["C"])
    state, _ = s.split(state, cache, "ax0", [4])
    assert relayouts(dag, steps_of(state)) == ()  # steps speak of the dimensions of the cache
    assert relayouts(dag, ()) == ()
    assert rewrite_layout(dag, (), PRE) == (dag, ())
