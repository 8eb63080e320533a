"""Transform steps: loop extents, attachments, printing, the log form and the errors of each."""

import pytest

from retune.compiler import te
from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule.bounds import infer_bounds
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Attached, State, replay
from retune.compiler.schedule.steps import (
    Annotate,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    ComputeRoot,
    FollowSplit,
    Fuse,
    Pragma,
    Reorder,
    Split,
    dump_steps,
    load_steps,
)


def matmul(n: int = 512) -> ComputeDAG:
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis(n, "k")
    return ComputeDAG([a, b, te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], k), "C")])


def chain() -> ComputeDAG:
    """A 7x7 convolution with stride 2 over a padded image, then bias and relu."""
    data, weight = te.placeholder((1, 224, 224, 3), name="data"), te.placeholder((7, 7, 3, 64), name="weight")
    bias = te.placeholder((64,), name="bias")
    pad = te.compute(
        (1, 230, 230, 3),
        lambda n, h, w, c: te.if_then_else(
            te.logical_and(h >= 3, h < 227, w >= 3, w < 227), data[n, h - 3, w - 3, c], 0.0
        ),
        "pad",
    )
    kh, kw, ci = te.reduce_axis(7, "kh"), te.reduce_axis(7, "kw"), te.reduce_axis(3, "ci")
    conv = te.compute(
        (1, 112, 112, 64),
        lambda n, h, w, f: te.sum(pad[n, h * 2 + kh, w * 2 + kw, ci] * weight[kh, kw, ci, f], [kh, kw, ci]),
        "conv",
    )
    added = te.compute(conv.shape, lambda n, h, w, f: conv[n, h, w, f] + bias[f], "added")
    relu = te.compute(conv.shape, lambda n, h, w, f: te.maximum(added[n, h, w, f], 0.0), "relu")
    return ComputeDAG([data, weight, bias, relu])


def extents(state: State, stage: int) -> list[object]:
    return [iterator.extent for iterator in state.stages[stage].iters]


def test_split_reorder_and_fuse_keep_track_of_extents() -> None:
    state = replay(matmul(), [Split(2, 0, 512, (16,)), Split(2, 2, 512, (8,))])
    assert extents(state, 2) == [32, 16, 64, 8, 512]
    state = state.apply(Reorder(2, (0, 2, 4, 3, 1)))
    assert state.stages[2].iters[2].extent == 512
    state = state.apply(Fuse(2, (0, 1)))
    assert extents(state, 2) == [2048, 512, 8, 16]
    assert state.stages[2].iters[0].name == "i.0@j.0@"


def test_outer_first_split() -> None:
    inner = replay(matmul(), [Split(2, 0, 512, (8, 2))])
    assert extents(inner, 2)[:3] == [32, 8, 2]
    outer = replay(matmul(), [Split(2, 0, 512, (32, 8), False)])
    assert extents(outer, 2)[:3] == [32, 8, 2]


def test_no_part_of_an_uneven_split_runs_further_than_the_whole() -> None:
    state = replay(matmul(10), [Split(2, 0, 10, (4, 16))])
    assert extents(state, 2)[:3] == [1, 1, 10]


def test_follow_split_merges_the_inner_levels() -> None:
    dag = chain()
    for levels, expected in ((1, [7, 16]), (2, [7, 2, 8]), (3, [7, 2, 4, 2])):
        state = replay(dag, [Split(3, 1, 112, (2, 4, 2)), FollowSplit(6, 1, 0, levels)])
        assert extents(state, 6)[1 : 2 + levels] == expected


def test_compute_at_leaves_extents_to_bound_inference_and_root_restores_them() -> None:
    state = replay(chain(), [ComputeInline(5), ComputeAt(3, 6, 2)])
    assert extents(state, 3) == [None] * 7
    assert extents(infer_bounds(state), 3) == [1, 1, 1, 64, 7, 7, 3]
    root = state.apply(ComputeRoot(3))
    assert extents(infer_bounds(root), 3) == [1, 112, 112, 64, 7, 7, 3]


def test_bounds_of_a_producer_cover_the_window_of_its_reader() -> None:
    state = infer_bounds(replay(chain(), [ComputeAt(1, 3, 2)]))
    assert extents(state, 1) == [1, 7, 7, 3]


def test_cache_write_takes_the_number_and_shifts_attachments() -> None:
    state = replay(chain(), [ComputeAt(1, 3, 2), CacheWrite(3, "local")])
    assert state.stages[3].op.name == "conv.local"
    assert state.stages[4].op.name == "conv"
    assert state.stages[1].location == Attached(4, 2)


def test_an_attachment_moves_with_its_loop() -> None:
    state = replay(chain(), [ComputeAt(1, 3, 2), Split(3, 1, 112, (4, 2))])
    assert state.stages[1].location == Attached(3, 4)
    state = state.apply(Reorder(3, (0, 4, 1, 2, 3, 5, 6, 7, 8)))
    assert state.stages[1].location == Attached(3, 1)
    state = state.apply(Fuse(3, (0, 1)))
    assert state.stages[1].location == Attached(3, 0)


def test_printing_leaves_out_loops_of_one_iteration() -> None:
    state = replay(
        matmul(4),
        [Split(2, 0, 4, (1, 2)), Pragma(2, 0, "auto_unroll_max_step$16")],
    )
    assert str(state).splitlines() == [
        "Placeholder: A, B",
        "C auto_unroll: 16",
        "for i.0 (0,2)",
        "  for i.2 (0,2)",
        "    for j (0,4)",
        "      for k (0,4)",
        "        C = ...",
    ]


def test_every_step_survives_the_log_form() -> None:
    steps = (
        ComputeInline(5),
        Split(3, 1, 112, (2, 4, 2)),
        FollowSplit(6, 1, 1, 2),
        Reorder(6, (0, 1, 2, 3, 4, 5)),
        ComputeAt(3, 6, 1),
        Fuse(6, (0, 1)),
        Annotate(6, 0, 3),
        Pragma(3, 0, "auto_unroll_max_step$64"),
        ComputeRoot(3),
        CacheWrite(1, "local"),
    )
    assert load_steps(dump_steps(steps)) == steps
    assert str(replay(chain(), load_steps(dump_steps(steps)))) == str(replay(chain(), steps))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([Split(2, 9, 512, (8,))], "no loop 9"),
        ([Split(2, 0, 512, (0,))], "must be positive"),
        ([Fuse(2, (0, 2))], "neighboring"),
        ([Reorder(2, (0, 0, 1))], "each of 3 loops once"),
        ([Annotate(2, 0, 3), Annotate(2, 0, 2)], "annotated already"),
        ([Annotate(2, 2, 2)], "reduces"),
        ([Annotate(2, 2, 3)], "reduces"),
        ([Pragma(2, 0, "faster")], "unknown"),
        ([ComputeInline(2)], "neither reduction nor output"),
        ([ComputeAt(2, 1, 0)], "no loop 0"),
        ([FollowSplit(2, 0, 4, 1)], "no step 4"),
        ([Split(7, 0, 1, (1,))], "no stage 7"),
        ([Annotate(2, 0, 99)], "99 is no annotation"),
        ([Split(2, 0, 512, (8,)), CacheWrite(2)], "before transforming"),
    ],
)
def test_a_step_that_does_not_fit_says_why(steps: list[Split], words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        replay(matmul(), steps)


def test_fusing_across_an_attached_stage_is_refused_with_the_way_out() -> None:
    with pytest.raises(ScheduleError, match="pad is computed between them; move it first"):
        replay(chain(), [ComputeAt(1, 3, 0), Fuse(3, (0, 1))])


def test_computing_a_stage_where_a_reader_is_not_is_refused() -> None:
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] + 1.0, "B")
    c = te.compute((8,), lambda i: b[i] * 2.0, "C")
    d = te.compute((8,), lambda i: b[i] + c[i], "D")
    with pytest.raises(ScheduleError, match="reads it outside the loop"):
        infer_bounds(replay(ComputeDAG([a, d]), [ComputeAt(1, 2, 0)]))


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "{}",
        "[1]",
        "[[]]",
        '[["XX",1]]',
        '[["SP",1]]',
        '[["SP",0,0,20,3,1]]',
        '[["SP",0,0,20,[2.5],1]]',
        '[["AN","x",0,2]]',
        '[["FU",1,[null]]]',
        '[["PR",1,0,3]]',
        '[[["AN"],1]]',
    ],
)
def test_a_damaged_log_is_a_schedule_error(text: str) -> None:
    with pytest.raises(ScheduleError):
        load_steps(text)
