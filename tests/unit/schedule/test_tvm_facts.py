"""Facts about compute graphs, states and logs that TVM's own tests check (tests/facts/tvm.md)."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import DefinitionError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.ir.expr import Expr
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule import primitives as s
from retune.compiler.schedule.bounds import infer_bounds
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.python_text import print_python_code_from_state
from retune.compiler.schedule.state import Annotation, Attached, Inlined, Root, State, replay
from retune.compiler.schedule.steps import Step, dump_steps, load_steps, steps_of
from retune.compiler.schedule.task import SearchTask
from retune.compiler.schedule.workload_registry import is_registered, register_workload_tensors, workload_key_to_tensors
from retune.compiler.te.tensor import Tensor


def matmul(n: int = 512, m: int = 512, depth: int = 512) -> ComputeDAG:
    a, b = te.placeholder((n, depth), name="A"), te.placeholder((depth, m), name="B")
    k = te.reduce_axis(depth, "k")
    return ComputeDAG([a, b, te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], k), "C")])


def conv_bn_relu(n: int, size: int, into: int, out: int, kernel: int, stride: int, pad: int) -> ComputeDAG:
    """Stages: data 0, pad 1, kernel 2, conv 3, bias 4, added 5, scale 6, scaled 7, offset 8, moved 9, relu 10."""
    data, weight = te.placeholder((n, into, size, size), name="data"), te.placeholder((out, into, kernel, kernel))
    bias, scale, offset = (te.placeholder((out, 1, 1), name=name) for name in ("bias", "scale", "offset"))
    grown = size + 2 * pad
    padded = te.compute(
        (n, into, grown, grown),
        lambda b, c, h, w: te.if_then_else(
            te.logical_and(h >= pad, h < size + pad, w >= pad, w < size + pad), data[b, c, h - pad, w - pad], 0.0
        ),
        "pad",
    )
    length = (grown - kernel) // stride + 1
    rc, ry, rx = te.reduce_axis(into, "rc"), te.reduce_axis(kernel, "ry"), te.reduce_axis(kernel, "rx")
    shape = (n, out, length, length)
    conv = te.compute(
        shape,
        lambda b, f, y, x: te.sum(
            padded[b, rc, y * stride + ry, x * stride + rx] * weight[f, rc, ry, rx], [rc, ry, rx]
        ),
        "conv",
    )
    added = te.compute(shape, lambda b, f, y, x: conv[b, f, y, x] + bias[f, 0, 0], "added")
    scaled = te.compute(shape, lambda b, f, y, x: added[b, f, y, x] * scale[f, 0, 0], "scaled")
    moved = te.compute(shape, lambda b, f, y, x: scaled[b, f, y, x] + offset[f, 0, 0], "moved")
    relu = te.compute(shape, lambda b, f, y, x: te.maximum(moved[b, f, y, x], 0.0), "relu")
    return ComputeDAG([data, weight, bias, offset, scale, relu])


def parallel_matmul() -> ComputeDAG:
    a, b, c = (te.placeholder((64, 64), name=name) for name in "ABC")
    k, q = te.reduce_axis(64, "k"), te.reduce_axis(64, "q")
    d = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], k), "D")
    return ComputeDAG([a, b, c, d, te.compute((64, 64), lambda i, j: te.sum(a[i, q] * c[q, j], q), "E")])


def tiled_matmul(n: int = 512) -> tuple[ComputeDAG, State]:
    dag = matmul(n, n, n)
    state, _ = s.split(State.initial(dag), "C", "i", [4, 8, 8])
    state, _ = s.split(state, "C", "j", [8, 4, 4])
    order = ["i.0", "j.0", "i.1", "j.1", "i.2", "j.2", "i.3", "j.3", "k"]
    return dag, s.reorder(state, "C", order)


def extents(state: State, stage: s.StageRef) -> list[object]:
    return [iterator.extent for iterator in state.stages[s.stage_number(state, stage)].iters]


def test_a_tiled_state_prints_as_python_and_computes_the_product() -> None:
    dag, state = tiled_matmul(64)
    text = print_python_code_from_state(dag, state)
    assert "state, _ = split(state, 'C', 'i', [4, 8, 8])" in text
    steps = steps_of(state)
    artifact = build_kernel(SearchTask("t", dag, Target.host(), HardwareParams(1)), steps, "tiled")
    rng = np.random.default_rng(0)
    a, b, c = (aligned_array((64, 64), "float32") for _ in range(3))
    a[...], b[...] = rng.random((64, 64)), rng.random((64, 64))
    load_kernels([artifact])["tiled"].bind([a, b, c], 1)()
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


def test_bounds_of_a_tiled_state_are_inferred() -> None:
    _, state = tiled_matmul()
    assert extents(infer_bounds(state), "C") == [2, 4, 4, 8, 8, 4, 8, 4, 512]


def test_flop_counts_are_those_of_tvm() -> None:
    n = 64
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis(n, "k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], k), "C")
    product = ComputeDAG([a, b, c]).flop_count
    assert product == 2 * n**3
    d = te.compute((n, n), lambda i, j: te.maximum(c[i, j], 0.0), "D")
    assert ComputeDAG([a, b, d]).flop_count == product + n * n

    def padded(i: Expr, j: Expr) -> Expr:
        return te.if_then_else(te.logical_and(i >= 1, i < n + 1, j >= 1, j < n + 1), c[i - 1, j - 1], 0.0)

    assert ComputeDAG([a, b, te.compute((n + 2, n + 2), padded, "pad")]).flop_count == product
    f = te.compute((n, n), lambda i, j: te.abs(c[i, j]), "F", {"FLOP": 1234})
    assert ComputeDAG([a, b, f]).flop_count == product + 1234
    g = te.compute((n, n), lambda i, j: te.if_then_else(a[i, j] > 0.0, a[i, j], 0.0), "G")
    assert ComputeDAG([a, g]).flop_count == n * n


def test_caches_of_two_products_keep_the_order_of_stages() -> None:
    state = State.initial(parallel_matmul())
    state, d_cache = s.cache_write(state, "D", "global")
    state, e_cache = s.cache_write(state, "E", "global")
    state, first = s.cache_read(state, "A", "shared", [d_cache])
    state, second = s.cache_read(state, "A", "shared", [e_cache])
    state, _ = s.cache_read(state, "B", "shared", [d_cache])
    state, _ = s.cache_read(state, "C", "shared", [e_cache])
    names = [op.name for op in state.dag.ops]
    assert len(names) == 11
    assert names[names.index("A") + 1 :][:2] == ["A.d.shared", "A.shared"]
    assert names[names.index("B") + 1] == "B.shared"
    assert names[names.index("C") + 1] == "C.shared"
    assert first.name == "A.shared"
    assert second.name == "A.d.shared"
    assert [stage.op for stage in state.stages] == list(state.dag.ops)


def test_a_graph_survives_pickling() -> None:
    dag = conv_bn_relu(1, 8, 3, 4, 3, 1, 1)
    again = pickle.loads(pickle.dumps(dag))
    assert str(State.initial(again)) == str(State.initial(dag))
    assert len(again.ops) == len(dag.ops)
    assert str(again) == str(dag)


def test_a_task_survives_pickling_and_registers_its_key() -> None:
    dag = matmul(8, 8, 8)
    task = SearchTask("t", dag, Target("llvm -mcpu=znver4"), HardwareParams(3, 32, 7), '["test-key"]')
    data = pickle.dumps(task)
    assert not is_registered('["test-key"]')
    again = pickle.loads(data)
    assert str(State.initial(again.dag)) == str(State.initial(dag))
    assert again.workload_key == '["test-key"]'
    assert str(again.target) == str(task.target)
    assert again.hardware == task.hardware
    assert str(ComputeDAG(workload_key_to_tensors('["test-key"]'))) == str(dag)


def test_two_reduce_axes_with_one_name_are_refused() -> None:
    a = te.placeholder((8, 8), name="A")
    k, q = te.reduce_axis(8, "k"), te.reduce_axis(8, "k")
    with pytest.raises(DefinitionError, match="names must differ"):
        te.compute((), lambda: te.sum(a[k, q], [k, q]), "S")


def test_split_reorder_and_fuse_give_the_extents() -> None:
    state = State.initial(matmul())
    state, (i0, i1) = s.split(state, 2, 0, [16])
    state, (j0, j1) = s.split(state, 2, "j", [8])
    assert [i0.extent, i1.extent, j0.extent, j1.extent] == [32, 16, 64, 8]
    state = s.reorder(state, 2, [i0, j0, "k", j1, i1])
    assert state.stages[2].iters[2].extent == 512
    state, fused = s.fuse(state, 2, [i0, j0])
    assert fused.extent == 2048


def test_split_counts_lengths_from_either_side() -> None:
    state = State.initial(matmul())
    state, inner = s.split(state, "C", "i", [8, 2])
    state, outer = s.split(state, "C", "j", [32, 8], inner_to_outer=False)
    assert [it.extent for it in inner] == [32, 8, 2]
    assert [it.extent for it in outer] == [32, 8, 2]


def test_annotations_return_the_new_loop_of_a_state() -> None:
    state = State.initial(matmul())
    state, (i0, i1, i2) = s.split(state, "C", "i", [4, 2])
    state, (j0, j1, j2) = s.split(state, "C", "j", [4, 2])
    wanted = []
    for loop, thread in ((i0, "blockIdx.x"), (i1, "vthread"), (i2, "threadIdx.y")):
        state, bound = s.bind(state, "C", loop, thread)
        wanted.append((bound, thread))
    state, j0 = s.parallel(state, "C", j0)
    state, j1 = s.unroll(state, "C", j1)
    state, j2 = s.vectorize(state, "C", j2)
    wanted += [(j0, "parallel"), (j1, "unroll"), (j2, "vectorize")]
    for position, (iterator, text) in enumerate(wanted):
        assert state.stages[2].iters[position] == iterator
        assert f"{text} {iterator.name} (0," in str(state)
    assert [int(iterator.annotation) for iterator, _ in wanted] == [5, 4, 8, 3, 1, 2]


def test_annotation_numbers_are_those_of_the_logs() -> None:
    assert [(kind.name, int(kind)) for kind in Annotation] == [
        ("NONE", 0),
        ("UNROLL", 1),
        ("VECTORIZE", 2),
        ("PARALLEL", 3),
        ("VTHREAD", 4),
        ("BLOCK_X", 5),
        ("THREAD_X", 6),
        ("BLOCK_Y", 7),
        ("THREAD_Y", 8),
        ("BLOCK_Z", 9),
        ("THREAD_Z", 10),
        ("TENSORIZE", 11),
    ]


def test_compute_at_inline_and_root_change_bounds() -> None:
    state = State.initial(conv_bn_relu(1, 224, 3, 64, 7, 2, 3))
    naive = [1, 64, 112, 112, 3, 7, 7]
    assert extents(state, "conv") == naive
    for name in ("added", "scaled", "moved"):
        state = s.compute_inline(state, name)
    state = s.compute_at(state, "conv", "relu", 2)
    assert extents(infer_bounds(state), "conv") == [1, 1, 1, 112, 3, 7, 7]
    assert state.stages[3].location == Attached(10, 2)
    assert state.stages[5].location == Inlined()
    state = s.compute_root(state, "conv")
    assert extents(infer_bounds(state), "conv") == naive
    assert state.stages[3].location == Root()


def _cached_conv() -> tuple[State, Tensor, Tensor]:
    state = State.initial(conv_bn_relu(4, 7, 512, 512, 3, 1, 1))
    state, cache = s.cache_write(state, "conv", "global")
    state = s.compute_at(state, cache, "conv", 3)
    state, kernel = s.cache_read(state, 2, "global", [cache])
    return s.compute_at(state, kernel, cache, 4), cache, kernel


def test_attached_caches_have_the_bounds_of_their_loop() -> None:
    state, cache, kernel = _cached_conv()
    bounds = infer_bounds(state)
    assert extents(bounds, "conv") == [4, 512, 7, 7]
    assert extents(bounds, kernel) == [1, 1, 3, 3]
    assert extents(bounds, cache) == [1, 1, 1, 1, 512, 3, 3]


def test_a_cache_of_a_cache_has_bounds() -> None:
    state, cache, kernel = _cached_conv()
    state, outer = s.cache_read(state, "pad", "global", [cache])
    state = s.compute_at(state, outer, cache, 2)
    state, inner = s.cache_read(state, outer, "shared", [cache])
    state = s.compute_at(state, inner, cache, 4)
    bounds = infer_bounds(state)
    assert extents(bounds, outer) == [1, 512, 3, 3]
    assert extents(bounds, inner) == [1, 1, 3, 3]
    assert extents(bounds, "conv") == [4, 512, 7, 7]
    assert extents(bounds, kernel) == [1, 1, 3, 3]
    assert extents(bounds, cache) == [1, 1, 1, 1, 512, 3, 3]


def test_a_cache_may_have_several_readers() -> None:
    state, cache = s.cache_read(State.initial(parallel_matmul()), "A", "shared", ["D", "E"])
    assert state.dag.readers[s.stage_number(state, "A")] == (s.stage_number(state, cache),)
    assert [state.dag.ops[i].name for i in state.dag.readers[s.stage_number(state, cache)]] == ["D", "E"]


@pytest.mark.parametrize("levels", range(1, 6))
def test_follow_split_agrees_with_its_leader(levels: int) -> None:
    state = State.initial(chain(512))
    state, leader = s.split(state, "B", "i", [4, 2, 8, 4])
    state, follower = s.follow_split(state, "C", "i", 0, levels)
    assert len(follower) == levels + 1
    assert [it.extent for it in follower[:levels]] == [it.extent for it in leader[:levels]]


def chain(n: int) -> ComputeDAG:
    a = te.placeholder((n, n), name="A")
    b = te.compute((n, n), lambda i, j: a[i, j] + 1.0, "B")
    return ComputeDAG([a, te.compute((n, n), lambda i, j: b[i, j] * 2.0, "C")])


@pytest.mark.parametrize("level", range(4))
@pytest.mark.parametrize("by_factor", [False, True])
def test_follow_fused_split_agrees_with_the_fused_loop(level: int, by_factor: bool) -> None:
    state = State.initial(chain(1024))
    state, i = s.split(state, "B", "i", [4, 2, 8, 4])
    state, j = s.split(state, "B", "j", [2, 2, 4, 8])
    state = s.reorder(state, "B", [loop for pair in zip(i, j, strict=True) for loop in pair])
    for first, second in zip(i, j, strict=True):
        state, _ = s.fuse(state, "B", [first, second])
    state, whole = s.fuse(state, "C", ["i", "j"])
    state, parts = s.follow_fused_split(state, "C", whole, [0, 1], level, by_factor)
    fused = state.stages[1].iters[level + 1].extent
    assert parts[1 if by_factor else 0].extent == fused


@pytest.mark.parametrize(
    ("part", "first", "second"), [(0, [8, 8, 32, 16], [8, 8, 32]), (1, [8, 8, 16, 32], [8, 8, 16])]
)
def test_rfactor_gives_both_stages_their_extents(part: int, first: list[int], second: list[int]) -> None:
    state = State.initial(matmul(8, 8, 512))
    state, parts = s.split(state, "C", "k", [16])
    state, rf = s.rfactor(state, "C", parts[part], 2)
    assert rf.name == "C.rf"
    assert extents(state, rf) == first
    assert extents(state, "C.repl") == second
    assert state.dag.outputs[0] is state.dag.nodes[s.stage_number(state, "C.repl")].tensor


def _annotated_program() -> tuple[ComputeDAG, State]:
    dag, state = tiled_matmul()
    state, fused = s.fuse(state, "C", ["i.0", "j.0"])
    state, _ = s.parallel(state, "C", fused)
    for loop, thread in (("i.1", "threadIdx.z"), ("j.1", "vthread"), ("i.2", "blockIdx.x")):
        state, _ = s.bind(state, "C", loop, thread)
    state, _ = s.unroll(state, "C", "j.2")
    state, _ = s.vectorize(state, "C", "j.3")
    return dag, state


def _cached_program() -> tuple[ComputeDAG, State]:
    dag = conv_bn_relu(1, 14, 8, 8, 3, 1, 1)
    state = State.initial(dag)
    for name in ("added", "scaled", "moved"):
        state = s.compute_inline(state, name)
    state, cache = s.cache_write(state, "conv", "local")
    state = s.compute_at(state, cache, "conv", 3)
    state, kernel = s.cache_read(state, 2, "shared", [cache])
    state = s.compute_at(state, kernel, cache, 4)
    state = s.compute_at(state, "pad", "relu", 0)
    return dag, s.compute_root(state, "pad")


def _following_program() -> tuple[ComputeDAG, State]:
    dag = chain(512)
    state, _ = s.split(State.initial(dag), "B", "i", [4, 2, 8, 4])
    state, _ = s.split(state, "B", "j", [2, 2, 4, 8])
    state, _ = s.follow_split(state, "C", "i", 0, 4)
    state, _ = s.follow_fused_split(state, "C", "j", [0, 1], 2, True)
    return dag, state


def _factored_program() -> tuple[ComputeDAG, State]:
    dag = matmul(8, 8, 512)
    state, (_, inner) = s.split(State.initial(dag), "C", "k", [16])
    state, rf = s.rfactor(state, "C", inner, 2)
    state = s.pragma(state, rf, 0, "auto_unroll_max_step$64")
    return dag, s.storage_align(state, rf, "i", 8, 4)


PROGRAMS = {
    "annotations": _annotated_program,
    "caches": _cached_program,
    "follow": _following_program,
    "rfactor": _factored_program,
}


@pytest.mark.parametrize("family", PROGRAMS)
def test_steps_survive_memory_and_file(family: str, tmp_path: Path) -> None:
    dag, state = PROGRAMS[family]()
    steps = steps_of(state)
    path = tmp_path / "records.json"
    path.write_text(dump_steps(steps) + "\n")
    lines = path.read_text().splitlines()
    assert len(lines) == 1
    for text in (dump_steps(steps), lines[0]):
        again = replay(dag, load_steps(text))
        assert str(infer_bounds(again)) == str(infer_bounds(state))
        assert str(infer_bounds(again)) != str(infer_bounds(State.initial(dag)))
        assert dump_steps(steps_of(again)) == text


@pytest.mark.parametrize("family", PROGRAMS)
def test_a_record_recovers_graph_and_state(family: str) -> None:
    dag, state = PROGRAMS[family]()
    key = register_workload_tensors(dag.workload_key, (*dag.inputs, *dag.outputs))
    record = json.dumps([key, dump_steps(steps_of(state))])
    found, steps = json.loads(record)
    recovered = ComputeDAG(workload_key_to_tensors(found))
    assert str(recovered) == str(dag)
    assert str(replay(recovered, load_steps(steps))) == str(state)


def _memoized(text: str, dag: ComputeDAG | None = None) -> State:
    return replay(dag or matmul(), load_steps(text))


def test_published_steps_of_a_cpu_tile_below_a_cache_write() -> None:
    text = (
        '[["CHW",2,"local"],["SP",2,0,512,[4,8,2],1],["SP",2,4,512,[2,4,8],1],["SP",2,8,512,[16],1],'
        '["RE",2,[0,4,1,5,8,2,6,9,3,7]],["FSP",3,0,1,%d],["FSP",3,%d,2,%d],["RE",3,%s],["CA",2,3,%d]]'
    )
    one = infer_bounds(_memoized(text % (1, 2, 1, "[0,2,1,3]", 1)))
    assert [op.name for op in one.dag.ops] == ["A", "B", "C.local", "C"]
    assert extents(one, "C") == [8, 8, 64, 64]
    assert extents(one, "C.local") == [1, 1, 4, 2, 32, 8, 4, 16, 2, 8]
    two = infer_bounds(_memoized(text % (2, 3, 2, "[0,3,1,4,2,5]", 3)))
    assert extents(two, "C") == [8, 8, 4, 2, 16, 32]
    assert extents(two, "C.local") == [1, 1, 1, 1, 32, 8, 4, 16, 2, 8]


def test_published_steps_of_factored_reductions() -> None:
    for iterator in (2, 3):
        state = _memoized(f'[["SP",2,2,512,[16],1],["RF",2,{iterator},2],["RE",2,[0,1,3,2]]]', matmul(8, 8, 512))
        factored, rest = (32, 16) if iterator == 2 else (16, 32)
        assert extents(state, "C.rf") == [8, 8, rest, factored]


def test_published_gpu_program_of_thirteen_steps() -> None:
    state = _memoized(
        '[["CHW",2,"local"],["SP",2,0,512,[1,16,2,1],1],["SP",2,5,512,[2,8,1,2],1],["SP",2,10,512,[4,2],1],'
        '["RE",2,[0,5,1,6,2,7,10,11,3,8,12,4,9]],["FSP",3,0,1,3],["FSP",3,4,2,3],["RE",3,[0,4,1,5,2,6,3,7]],'
        '["CA",2,3,5],["CHR",1,"shared",[2]],["CA",2,3,6],["CHR",0,"shared",[3]],["CA",1,4,6]]'
    )
    assert len(state.steps) == 13
    assert [op.name for op in state.dag.ops] == ["A", "A.shared", "B", "B.shared", "C.local", "C"]
    assert [state.stages[number].location for number in (1, 3, 4)] == [
        Attached(4, 6),
        Attached(4, 6),
        Attached(5, 5),
    ]
    bounds = infer_bounds(state)
    assert extents(bounds, "C") == [16, 16, 1, 2, 16, 8, 2, 2]
    assert extents(bounds, "A.shared") == [2, 8]
    assert extents(bounds, "B.shared") == [8, 2]
    state = replay(
        matmul(),
        [
            *(step for step in state.steps if isinstance(step, Step)),
            *load_steps(
                '[["FU",5,[0,1]],["AN",5,0,5],["FU",5,[1,2]],["AN",5,1,4],["FU",5,[2,3]],["AN",5,2,6],'
                '["FU",3,[0,1]],["SP",3,0,0,[1],1],["AN",3,1,2],["FFSP",3,0,[1,2],1,1],["AN",3,1,6]]'
            ),
        ],
    )
    bounds = infer_bounds(state)
    assert [it.name for it in bounds.stages[5].iters[:3]] == ["i.0@j.0@", "i.1@j.1@", "i.2@j.2@"]
    assert state.stages[4].location == Attached(5, 2)
    # Bound to threads, the cache holds what all 16 x 8 threads of a block read: 8 x 32 elements, two for each.
    assert extents(bounds, "B.shared") == [2, 128, 1]
    assert extents(bounds, "A.shared") == [32, 8]
    assert "blockIdx.x i.0@j.0@ (0,256)" in str(bounds)
