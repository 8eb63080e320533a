"""Schedule functions: what they accept, what they return, and that they never change the state they are given."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import LoweringError, ScheduleError
from retune.compiler.core.target import HardwareParams
from retune.compiler.lower.pipeline import lower
from retune.compiler.schedule import primitives as s
from retune.compiler.schedule.bounds import infer_bounds
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.python_text import print_python_code_from_state
from retune.compiler.schedule.state import Annotation, Root, State
from retune.compiler.schedule.steps import Annotate, Reorder, Split
from retune.compiler.te.tensor import Tensor


def matmul() -> tuple[ComputeDAG, Tensor]:
    a, b = te.placeholder((8, 8), name="A"), te.placeholder((8, 8), name="B")
    k = te.reduce_axis(8, "k")
    c = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * b[k, j], k), "C")
    return ComputeDAG([a, b, te.compute((8, 8), lambda i, j: c[i, j] + 1.0, "D")]), c


def test_a_stage_and_a_loop_have_several_names() -> None:
    dag, c = matmul()
    before = State.initial(dag)
    for stage in (2, "C", c, c.op):
        for loop in (1, "j", before.stages[2].iters[1]):
            after, parts = s.split(before, stage, loop, [4])
            assert after.steps == (Split(2, 1, 8, (4,)),)
            assert [it.name for it in parts] == ["j.0", "j.1"]
    assert before.steps == ()


def test_handles_stay_valid_when_stages_are_added() -> None:
    dag, c = matmul()
    state, cache = s.cache_write(State.initial(dag), c)
    state, copy = s.cache_read(state, "A", "shared", [cache])
    assert s.stage_number(state, copy) == 1
    assert s.stage_number(state, cache) == 3
    assert s.stage_number(state, c) == 4
    assert s.stage_number(state, c.op) == 4
    state, rf = s.rfactor(state, cache, "k", 0)
    assert s.stage_number(state, rf) == 3
    assert s.stage_number(state, cache) == 4
    assert s.stage_number(state, "C.local") == 4
    assert s.stage_number(state, c) == 5


def test_unroll_leaves_long_loops() -> None:
    state = State.initial(matmul()[0])
    same, loop = s.unroll(state, "C", "k", max_unroll=4)
    assert same is state
    assert loop == state.stages[2].iters[2]
    unrolled, loop = s.unroll(state, "C", "k", max_unroll=8)
    assert len(unrolled.steps) == 1
    assert "unroll k" in str(unrolled)
    assert loop == unrolled.stages[2].iters[2]


def test_reorder_takes_names() -> None:
    state = s.reorder(State.initial(matmul()[0]), "C", ["k", "i", "j"])
    assert state.steps == (Reorder(2, (2, 0, 1)),)


def test_an_empty_fuse_gives_a_scalar_a_loop() -> None:
    x = te.placeholder((4,), name="x")
    state, loop = s.fuse(State.initial(ComputeDAG([x, te.compute((), lambda: x[2] * 2.0, "y")])), "y", [])
    assert loop.extent == 1
    state, loop = s.parallel(state, "y", loop)
    assert state.stages[1].iters == (loop,)


def test_a_loop_bound_to_a_gpu_thread_is_no_cpu_program() -> None:
    state, _ = s.bind(State.initial(matmul()[0]), "D", "i", "threadIdx.x")
    with pytest.raises(LoweringError, match=r"D: the loop i is bound to threadIdx.x, which a CPU lacks; use parallel"):
        lower(state, "kernel", HardwareParams(1))


def test_a_tensor_instruction_is_printed_but_cannot_become_code() -> None:
    dag = matmul()[0]
    state = State.initial(dag).apply(Annotate(2, 1, int(Annotation.TENSORIZE)))
    assert "tensorize j (0,8)" in str(state)
    with pytest.raises(LoweringError, match="bound to tensorize, which a CPU lacks"):
        lower(state, "kernel", HardwareParams(1))
    assert "state, _ = tensorize(state, 'C', 'j')" in print_python_code_from_state(dag, state)


def test_skipping_a_region_takes_the_stage_out_of_its_loop() -> None:
    dag = matmul()[0]
    state = s.compute_at(State.initial(dag), "C", "D", "i")
    skipped = s.pragma(state, "C", 0, "debug_skip_region")
    assert isinstance(skipped.stages[2].location, Root)
    assert str(infer_bounds(skipped)) == str(State.initial(dag))
    assert s.pragma(skipped, "C", 0, "debug_skip_region").stages == skipped.stages
    with pytest.raises(ScheduleError, match="known: auto_unroll_max_step\\$N, debug_skip_region"):
        s.pragma(state, "C", 0, "skip")


def test_missing_stage_or_loop_is_named() -> None:
    state = State.initial(matmul()[0])
    with pytest.raises(ScheduleError, match="there is no stage E; stages: A, B, C, D"):
        s.compute_root(state, "E")
    with pytest.raises(ScheduleError, match="C: there is no loop l; its loops: i, j, k"):
        s.parallel(state, "C", "l")
    with pytest.raises(ScheduleError, match="C: there is no loop 7"):
        s.unroll(state, "C", 7)
    with pytest.raises(ScheduleError, match="no thread 'warp' to bind"):
        s.bind(state, "C", "i", "warp")
    with pytest.raises(ScheduleError, match="there is no stage 9"):
        s.split(state, 9, 0, [2])


@pytest.mark.parametrize("value", [2.5, "x", "", None, [1], -7, 1 << 80, float("nan"), object], ids=repr)
def test_a_wrong_argument_is_an_error_of_the_schedule(value: Any) -> None:
    dag, c = matmul()
    state, _ = s.split(State.initial(dag), "D", "i", [4])
    lengths: Any = [value] if isinstance(value, list) else value
    calls: list[Callable[[], object]] = [
        lambda: s.split(state, value, "i", [2]),
        lambda: s.split(state, c, value, [2]),
        lambda: s.split(state, c, "i", [value if value is not None else 0]),
        lambda: s.split(state, c, "i", lengths),
        lambda: s.follow_split(state, c, "i", value, 1),
        lambda: s.follow_split(state, c, "i", 0, value),
        lambda: s.follow_fused_split(state, c, "i", [value], 0),
        lambda: s.follow_fused_split(state, c, "i", value if value != [1] else [7], 0),
        lambda: s.follow_fused_split(state, c, "i", [0], value),
        lambda: s.fuse(state, c, [value, "j"]),
        lambda: s.reorder(state, c, [value]),
        lambda: s.unroll(state, c, "i", value) if value not in (-7, "x") else s.unroll(state, c, value),
        lambda: s.bind(state, c, "i", value),
        lambda: s.pragma(state, c, "i", value),
        lambda: s.storage_align(state, c, "i", value, 0),
        lambda: s.storage_align(state, c, "i", 4, value),
        lambda: s.compute_at(state, value, "D", "i.0"),
        lambda: s.compute_at(state, c, "D", value),
        lambda: s.cache_read(state, "A", "local", [value]),
        lambda: s.cache_read(state, "A", value if value != "x" else "", [c]),
        lambda: s.rfactor(state, c, "k", value),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(ScheduleError):
            print(number, call())


def test_numbers_may_be_numpys() -> None:
    dag, _ = matmul()
    state, parts = s.split(State.initial(dag), np.int64(2), np.int32(0), np.array([4, 2]))  # type: ignore[arg-type]
    assert state.steps == (Split(2, 0, 8, (4, 2)),)
    assert len(parts) == 3


def test_a_name_of_two_stages_is_refused() -> None:
    x = te.placeholder((4,), name="x")
    first = te.compute((4,), lambda i: x[i] + 1.0, "y")
    state = State.initial(ComputeDAG([x, te.compute((4,), lambda i: first[i] * 2.0, "y")]))
    with pytest.raises(ScheduleError, match="the stages 1, 2 are all called y; say which by its number"):
        s.parallel(state, "y", "i")
    assert s.parallel(state, first, "i")[0].steps[0].stage == 1
