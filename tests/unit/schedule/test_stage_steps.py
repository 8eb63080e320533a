"""Steps that add a stage or pad a buffer: names, numbers, graphs, legality and printing."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule.bounds import infer_bounds
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Attached, IterKind, Root, replay
from retune.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    FollowFusedSplit,
    Fuse,
    Pragma,
    Reorder,
    Rfactor,
    Split,
    Step,
    StorageAlign,
    dump_steps,
    load_steps,
)


def matmul(n: int = 6, m: int = 5, depth: int = 14) -> ComputeDAG:
    a, b = te.placeholder((n, depth), name="A"), te.placeholder((depth, m), name="B")
    k = te.reduce_axis(depth, "k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], k), "C")
    return ComputeDAG([a, b, te.compute((n, m), lambda i, j: te.maximum(c[i, j], 0.0), "D")])


def total() -> ComputeDAG:
    x = te.placeholder((3, 7), name="x")
    i, j = te.reduce_axis(3, "i"), te.reduce_axis(7, "j")
    return ComputeDAG([x, te.compute((), lambda: te.max(x[i, j], [i, j]), "top")])


def test_stage_steps_have_the_log_form_of_tvm() -> None:
    text = '[["SP",2,2,14,[4],1],["RF",2,2,1],["CHR",0,"shared",[2]],["FFSP",4,0,[0],0,0],["SA",3,0,8,4]]'
    steps = load_steps(text)
    assert steps == (
        Split(2, 2, 14, (4,)),
        Rfactor(2, 2, 1),
        CacheRead(0, "shared", (2,)),
        FollowFusedSplit(4, 0, (0,), 0, False),
        StorageAlign(3, 0, 8, 4),
    )
    assert dump_steps(steps) == text
    names = [op.name for op in replay(matmul(), steps).dag.ops]
    assert names == ["A", "A.shared", "B", "C.rf", "C.repl", "D"]


def test_the_factored_graph_reads_what_the_reduction_read() -> None:
    dag = replay(matmul(), [Split(2, 2, 14, (4,)), Rfactor(2, 2, 1)]).dag
    assert str(dag).splitlines()[2:4] == [
        "C.rf(i, k_0, j) += select((((k_0 * 4) + k_1) < 14), (A[i, ((k_0 * 4) + k_1)] * B[((k_0 * 4) + k_1), j]), 0.0)",
        "C.repl(ax0, ax1) += C.rf[ax0, k_0_v, ax1]",
    ]


def test_a_fused_and_split_reduction_is_factored() -> None:
    state = replay(total(), [Fuse(1, (0, 1)), Split(1, 0, 21, (4,)), Rfactor(1, 1, 0)])
    assert [iterator.name for iterator in state.stages[1].iters] == ["i_j__1", "i_j__0"]
    assert [iterator.extent for iterator in state.stages[1].iters] == [4, 6]
    point = "((i_j__0 * 4) + i_j__1)"
    assert f"select(({point} < 21), x[({point} // 7), ({point} % 7)], -inf)" in str(state.dag)


def test_a_reduction_fused_with_part_of_another_is_factored() -> None:
    state = replay(total(), [Split(1, 0, 3, (2,)), Fuse(1, (1, 2)), Rfactor(1, 0, 0)])
    assert [iterator.extent for iterator in state.stages[1].iters] == [2, 14]
    row = "((i_0 * 2) + (i_1_j_ // 7))"
    assert f"select(({row} < 3), x[{row}, (i_1_j_ % 7)], -inf)" in str(state.dag)


def test_a_factored_stage_stays_where_it_is_computed() -> None:
    state = replay(matmul(), [ComputeAt(2, 3, 0), Split(2, 2, 14, (4,)), Rfactor(2, 2, 2)])
    assert isinstance(state.stages[2].location, Root)
    assert state.stages[3].location == Attached(4, 0)
    assert [it.extent for it in infer_bounds(state).stages[3].iters] == [1, 5, 4]


def test_a_stage_added_before_moves_attachments_and_readers() -> None:
    state = replay(matmul(), [ComputeAt(2, 3, 1), CacheRead(1, "local", (2,)), CacheRead(1, "local", (2,))])
    assert [op.name for op in state.dag.ops] == ["A", "B", "B.d.local", "B.local", "C", "D"]
    assert state.stages[4].location == Attached(5, 1)
    assert state.dag.readers[1] == (2,)
    assert state.dag.readers[2] == (3,)


def test_a_cache_of_an_inlined_stage_computes_it() -> None:
    x = te.placeholder((8,), name="x")
    a = te.compute((8,), lambda i: x[i] + 1.0, "a")
    dag = ComputeDAG([x, te.compute((8,), lambda i: a[i] * a[7 - i], "b")])
    state = replay(dag, [ComputeInline(1), CacheRead(1, "local", (2,)), ComputeAt(2, 3, 0)])
    assert [it.extent for it in infer_bounds(state).stages[2].iters] == [8]


def test_loop_lengths_of_many_programs_at_once() -> None:
    family = np.array([1, 2, 4], np.int64)
    state = replay(
        matmul(),
        [
            CacheRead(0, "local", (2,)),
            Split(3, 0, 6, (family,)),
            Split(3, 2, 5, (family * 2,)),
            ComputeAt(1, 3, 0),
            FollowFusedSplit(4, 0, (1, 2), 0),
        ],
    )
    bounds = infer_bounds(state)
    rows = bounds.stages[1].iters[0].extent
    assert isinstance(rows, np.ndarray)
    assert rows.tolist() == [1, 2, 4]
    inner = bounds.stages[4].iters[1].extent
    assert isinstance(inner, np.ndarray)
    assert inner.tolist() == [2, 6, 6]


def test_a_loop_around_a_stage_without_spatial_loops_runs_in_parallel() -> None:
    state = replay(total(), [Fuse(1, ()), Annotate(1, 0, 3)])
    assert [iterator.kind for iterator in state.stages[1].iters] == [
        IterKind.SPECIAL,
        IterKind.REDUCTION,
        IterKind.REDUCTION,
    ]


def test_a_scalar_is_factored_before_it_gets_a_loop() -> None:
    with pytest.raises(ScheduleError, match="before tiling or fusing any but its own loops"):
        replay(total(), [Fuse(1, ()), Split(1, 0, 1, (1,)), Rfactor(1, 3, 0)])


def test_alignment_is_printed() -> None:
    state = replay(matmul(), [Split(2, 1, 5, (2,)), StorageAlign(2, 0, 16, 3)])
    assert "C storage_offset: 3 of 16 at i" in str(state)
    inner = replay(matmul(), [Split(2, 0, 6, (2,)), StorageAlign(2, 1, 16, 3)])
    assert "C storage_offset: 3 of 16 at i" in str(inner)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([CacheRead(0, "local", (3,))], r"A: D does not read it; stages that do: 2 \(C\)"),
        ([CacheRead(3, "local", (2,))], "D: C does not read it; stages that do: none"),
        ([CacheRead(0, "local", ())], "each of its readers once"),
        ([CacheRead(0, "local", (2, 2))], "each of its readers once"),
        ([CacheRead(0, "local", (9,))], "there is no stage 9"),
        ([Rfactor(2, 0, 0)], "the loop i does not reduce"),
        ([Rfactor(0, 0, 0)], "no loop 0"),
        ([Rfactor(2, 2, 3)], "axis 0 to 2"),
        ([Rfactor(2, 2, -1)], "axis 0 to 2"),
        ([Split(2, 0, 6, (2,)), Rfactor(2, 3, 0)], "before tiling"),
        ([Fuse(2, (0, 1)), Rfactor(2, 1, 0)], "before tiling"),
        ([Annotate(2, 1, 2), Rfactor(2, 2, 0)], "loop j is annotated"),
        ([StorageAlign(2, 0, 8, 0), Rfactor(2, 2, 0)], "align it afterwards"),
        ([CacheRead(0, "local", (2,)), ComputeAt(1, 3, 0), Rfactor(3, 2, 0)], "A.local is computed inside"),
        ([Split(2, 2, 14, (None,)), Rfactor(2, 2, 0)], "is unknown; fill it in before factoring"),
        ([Annotate(2, 1, 2), CacheWrite(2)], "loop j is annotated"),
        ([Reorder(2, (1, 0, 2)), CacheWrite(2)], "before transforming"),
        ([Pragma(2, 0, "auto_unroll_max_step$16"), CacheWrite(2)], "unroll limit; set that afterwards"),
        ([CacheWrite(0)], "is an input"),
        ([CacheRead(0, "local", (2,)), ComputeAt(1, 3, 2), CacheWrite(3)], "inside its loop k, which the copy lacks"),
        ([StorageAlign(2, 2, 8, 0)], "no dimension for the loop k"),
        ([StorageAlign(3, 0, 8, 0)], "an output lies where its reader expects it"),
        ([StorageAlign(2, 0, 0, 0)], "factor must be positive"),
        ([StorageAlign(2, 0, 8, 8)], "offset below it"),
        ([Fuse(2, (0, 1)), StorageAlign(2, 0, 8, 0)], "was fused from i, j"),
        ([CacheRead(1, "local", (2,)), ComputeInline(2), StorageAlign(2, 0, 8, 0)], "inlined and has no storage"),
        ([FollowFusedSplit(2, 0, (0,), 0)], "no step 0 to follow"),
        ([FollowFusedSplit(2, 0, (), 0)], "at least one split"),
        ([Split(2, 0, 6, (2,)), FollowFusedSplit(2, 2, (0,), 1)], "no length number 1"),
        ([Reorder(2, (0, 1, 2)), FollowFusedSplit(2, 2, (0,), 0)], "is no split"),
        ([Annotate(2, 0, 12)], "12 is no annotation"),
        ([Annotate(2, 0, 0)], "0 is no annotation"),
        ([Fuse(2, ())], "only for a stage without spatial loops"),
        ([Annotate(2, 0, 3), Fuse(2, (0, 1))], "fuse before annotating"),
    ],
)
def test_a_step_that_does_not_fit_says_why(steps: list[Step], words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        replay(matmul(), steps)
