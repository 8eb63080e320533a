"""GPU programs: sampled, bound to threads, read back, and kept within the limits of a block."""

from dataclasses import replace

import numpy as np
import pytest

from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.model import RandomModel
from retune.compiler.schedule.state import Annotation, Attached, Root, State, replay
from retune.compiler.schedule.statements import statement_nests
from retune.compiler.schedule.steps import Split, dump_steps, load_steps
from retune.compiler.search import mutation
from retune.compiler.search.gpu.legality import gpu_legal
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.search.spaces import build_spaces
from tests.support.gpu_spaces import DAGS, spaces_of
from tests.support.workloads import (
    GPU,
    gpu_task_of,
    matmul,
)


def iterations(state: State, stage: int, annotation: Annotation) -> int:
    """How many turns the loops of a stage with an annotation make."""
    found = 1
    for iterator in state.stages[stage].iters:
        if iterator.annotation is annotation:
            assert isinstance(iterator.extent, int)
            found *= iterator.extent
    return found


@pytest.mark.parametrize("name", DAGS)
def test_legal_programs_replay_read_back_and_keep_the_limits(name: str) -> None:
    dag = DAGS[name]
    rng = np.random.default_rng(3)
    for space in spaces_of(dag):
        found = 0
        for _, group in space.groups(space.sample(rng, 2000)):
            legal = space.legal(group)
            for row in group.rows[legal][:6]:
                found += 1
                steps = space.steps(row)
                state = replay(dag, steps)
                assert gpu_legal(statement_nests(state), GPU, 1).all()
                again = space.row_of(load_steps(dump_steps(steps)))
                assert again is not None
                assert (again == row).all()
                for number, stage in enumerate(state.stages):
                    if stage.is_compute and isinstance(stage.location, Root):
                        assert iterations(state, number, Annotation.THREAD_X) <= GPU.max_threads_per_block
                        assert iterations(state, number, Annotation.VTHREAD) <= GPU.max_vthread_extent
            for row in group.rows[~legal][:4]:
                assert not gpu_legal(statement_nests(replay(dag, space.steps(row))), GPU, 1).all()
        assert found


@pytest.mark.parametrize("name", DAGS)
def test_every_kernel_is_bound_to_blocks_or_threads(name: str) -> None:
    for space in spaces_of(DAGS[name]):
        rows = space.sample(np.random.default_rng(0), 1)
        state = replay(space.dag, space.steps(rows[0]))
        for number, stage in enumerate(state.stages):
            if not stage.is_compute or not isinstance(stage.location, Root):
                continue
            inside = [
                number,
                *(n for n, one in enumerate(state.stages) if one.location.__class__ is Attached),
            ]
            marks = {iterator.annotation for at in inside for iterator in state.stages[at].iters}
            assert Annotation.THREAD_X in marks


def test_a_tiled_stage_is_blocks_virtual_threads_and_threads() -> None:
    (space,) = spaces_of(DAGS["matmul"])
    state = replay(space.dag, space.steps(space.sample(np.random.default_rng(0), 1)[0]))
    loops = [(one.name, one.annotation) for one in state.stages[5].iters[:3]]
    assert loops == [
        ("i.0@j.0@", Annotation.BLOCK_X),
        ("i.1@j.1@", Annotation.VTHREAD),
        ("i.2@j.2@", Annotation.THREAD_X),
    ]
    assert state.stages[4].location == Attached(5, 2)
    assert [one.annotation for one in state.stages[1].iters] == [
        Annotation.NONE,
        Annotation.THREAD_X,
        Annotation.VECTORIZE,
    ]


def test_sums_that_no_thread_has_registers_for_are_not_sampled() -> None:
    """Their programs would keep them in memory; a block of more threads has fewer for each."""
    (space,) = build_spaces(gpu_task_of("m", matmul(512, 512, 512)), SearchOptions())
    rows = space.sample(np.random.default_rng(0), 200)
    seen = 0
    for _, group in space.groups(rows):
        for row in group.rows[space.legal(group)][:40]:
            (kernel,) = lower_for_gpu(replay(space.dag, space.steps(row)), "k", GPU).kernels
            assert kernel.registers + 32 <= GPU.gpu.most_registers(kernel.threads)
            seen += 1
    assert seen > 20


def test_shared_memory_holds_what_all_threads_of_a_block_read() -> None:
    (space,) = spaces_of(matmul(512, 512, 512))
    row = np.ones((1, space.layout.width), dtype=np.int64)
    row[:, space.layout.placement] = 0
    for split, parts in zip(space.layout.splits, ([16, 1, 16, 2, 1], [32, 2, 8, 1, 1], [64, 4, 2]), strict=True):
        row[0, split.columns] = parts
    _, group = next(iter(space.groups(row)))
    sizes = {nest.op.name: [int(np.max(extent)) for extent in nest.write.shape] for nest in group.nests}
    assert sizes["A.shared"] == [32, 8]
    assert sizes["B.shared"] == [8, 16]
    assert sizes["C.local"] == [2, 1]
    needed = 4 * (32 * 8 + 8 * 16)
    assert gpu_legal(group.nests, replace(GPU, max_shared_memory_per_block=needed), 1).all()
    assert not gpu_legal(group.nests, replace(GPU, max_shared_memory_per_block=needed - 1), 1).all()
    assert gpu_legal(group.nests, replace(GPU, max_vthread_extent=2), 1).all()
    assert not gpu_legal(group.nests, replace(GPU, max_vthread_extent=1), 1).all()
    assert gpu_legal(group.nests, replace(GPU, max_threads_per_block=128), 1).all()
    assert not gpu_legal(group.nests, replace(GPU, max_threads_per_block=127), 1).all()
    assert not gpu_legal(group.nests, replace(GPU, warp_size=129), 1).all()
    wide = row.copy()
    wide[0, space.layout.widths[0].column] = 4
    _, group = next(iter(space.groups(wide)))
    assert gpu_legal(group.nests, GPU, 1).all()
    assert not gpu_legal(group.nests, replace(GPU, vector_unit_bytes=8), 1).all()


def test_a_hardly_larger_stage_than_a_warp_needs_no_full_warp() -> None:
    (space, *_) = [one for one in spaces_of(matmul(4, 4, 4)) if one.layout.splits]
    rows = space.sample(np.random.default_rng(0), 20)
    assert all(space.legal(group).all() for _, group in space.groups(rows))


def test_widths_are_redrawn_among_their_choices() -> None:
    space = spaces_of(DAGS["softmax"])[1]
    rng = np.random.default_rng(0)
    rows = space.sample(rng, 100)
    children = mutation.redraw_width(rng, rows, space.layout)
    assert ((children != rows).sum(axis=1) == 1).all()
    for width in space.layout.widths:
        assert set(children[:, width.column].tolist()) <= set(width.choices)
        assert isinstance(space.sketch[width.step], Split)


@pytest.mark.parametrize("name", ["matmul", "softmax", "conv"])
def test_the_policy_proposes_distinct_legal_gpu_programs(name: str) -> None:
    task = gpu_task_of(name, DAGS[name])
    policy = SketchPolicy(task, RandomModel(0), SearchOptions(population=512, generations=2), seed=1)
    candidates = policy.ask(16, 0)
    assert len({program.steps for program in candidates}) == 16
    for one in candidates:
        assert gpu_legal(statement_nests(replay(task.dag, load_steps(one.steps))), GPU, 1).all()
