"""The limits as the search sees them are those of the lowering: for every sampled program the same first reason."""

from dataclasses import replace

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import DeviceLimitError
from retune.compiler.core.target import HardwareParams
from retune.compiler.lower.gpu.limits import Limit
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.statements import statement_nests
from retune.compiler.schedule.steps import Annotate, ComputeAt, Split, Step
from retune.compiler.search.gpu.kernels import kernels_of
from retune.compiler.search.gpu.legality import REASONS, gpu_refusals
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.spaces import build_spaces
from tests.support.simt_operators import OPERATORS
from tests.support.small_computations import doubled, sum_and_peak, window
from tests.support.tiers import long_except
from tests.support.workloads import GPU, gpu_task_of, matmul

TIGHT = {
    "usual": GPU,
    "little shared memory": replace(GPU, max_shared_memory_per_block=96),
    "what a launch may give": replace(GPU, max_shared_memory_per_block=227 << 10),
    "little local memory": replace(GPU, max_local_memory_per_block=24),
    "few threads": replace(GPU, max_threads_per_block=32),
    "few virtual threads": replace(GPU, max_vthread_extent=1),
}
"""GPUs that refuse many programs, each for its own reason."""


LARGE = replace(GPU, max_shared_memory_per_block=1 << 20, max_threads_per_block=1024, max_vthread_extent=1024)


def said_by_lowering(dag: ComputeDAG, steps: tuple[Step, ...], hardware: HardwareParams) -> str | None:
    """Which limit the lowering names."""
    try:
        lower_for_gpu(replay(dag, steps), "k", hardware)
    except DeviceLimitError as error:
        return error.limit
    return None


def half_sums(*shape: int) -> ComputeDAG:
    """Sums along the last axis of float16, which threads hold in float32."""
    x, k = te.placeholder(shape, "float16", "x"), te.reduce_axis(shape[-1], "k")
    total = te.compute(shape[:-1], lambda *outer: te.sum(x[(*outer, k)] * x[(*outer, k)], k), "total")
    return ComputeDAG([x, te.compute(shape[:-1], lambda *outer: te.sqrt(total[outer]), "length")])


WORKLOADS = {
    **OPERATORS,
    "sums of halves": lambda: half_sums(40, 96),
    "product of halves": lambda: matmul(32, 32, 24, "float16"),
}


@pytest.mark.parametrize("name", long_except(["matmul", "depthwise", "softmax", "sums of halves"], WORKLOADS))
def test_every_sampled_program_is_refused_for_the_reason_of_the_lowering_or_not_at_all(name: str) -> None:
    dag = WORKLOADS[name]()
    rng = np.random.default_rng(5)
    options = SearchOptions(sample_attempts=1)
    for space in build_spaces(gpu_task_of(name, dag), options):
        rows = space.sample(rng, 40)
        for _, group in space.groups(rows):
            for label, hardware in TIGHT.items():
                said = gpu_refusals(group.nests, hardware, len(group.rows))
                for row, reason in list(zip(group.rows, said, strict=True))[: 4 if label == "usual" else 3]:
                    wanted = said_by_lowering(dag, space.steps(row), hardware)
                    assert REASONS[reason] == wanted, (label, str(replay(dag, space.steps(row))))


@pytest.mark.parametrize("name", ["sums of halves", "product of halves", "layer norm"])
def test_the_memory_of_a_kernel_is_that_of_the_lowered_one(name: str) -> None:
    dag = WORKLOADS[name]()
    for space in build_spaces(gpu_task_of(name, dag), SearchOptions()):
        _, group = next(iter(space.groups(space.sample(np.random.default_rng(2), 12))))
        asked = [kernel.memory for kernel in kernels_of(group.nests, len(group.rows))]
        for place, row in enumerate(group.rows):
            for (shared, local), kernel in zip(
                asked, lower_for_gpu(replay(dag, space.steps(row)), "k", LARGE).kernels, strict=True
            ):
                assert (shared[place], local[place]) == (kernel.bytes_of("shared"), kernel.bytes_of("local"))


def test_tight_limits_are_met_and_broken() -> None:
    """The property above is no empty one."""
    seen: set[Limit | None] = set()
    for name in ("matmul", "softmax", "layer norm", "norm"):
        dag = OPERATORS[name]()
        for space in build_spaces(gpu_task_of(name, dag), SearchOptions(sample_attempts=1)):
            for _, group in space.groups(space.sample(np.random.default_rng(5), 200)):
                for hardware in TIGHT.values():
                    seen |= {REASONS[reason] for reason in gpu_refusals(group.nests, hardware, len(group.rows))}
    assert seen >= {None, Limit.SHARED, Limit.LOCAL, Limit.THREADS, Limit.VIRTUAL_THREADS}


BLOCK, THREAD, THREAD_Y = Annotation.BLOCK_X, Annotation.THREAD_X, Annotation.THREAD_Y


@pytest.mark.parametrize(
    ("dag", "steps", "hardware"),
    [
        (doubled(65536), (Annotate(1, 0, Annotation.BLOCK_Y),), GPU),
        (doubled(65), (Annotate(1, 0, Annotation.THREAD_Z),), GPU),
        (doubled(1025), (Annotate(1, 0, THREAD),), GPU),
        (doubled(9), (Annotate(1, 0, Annotation.VTHREAD),), GPU),
        (
            doubled(1024),
            (Split(1, 0, 1024, (32,)), Annotate(1, 0, THREAD), Annotate(1, 1, THREAD_Y)),
            replace(GPU, max_threads_per_block=512),
        ),
        *(
            (window(), (Split(2, 0, 8, (4,)), ComputeAt(1, 2, 0), Annotate(2, at, THREAD)), hardware)
            for at in (0, 1)
            for least in (23, 24)
            for hardware in (
                replace(GPU, max_local_memory_per_block=least),
                replace(GPU, max_shared_memory_per_block=least),
            )
        ),
        *(
            (
                sum_and_peak(rows, 100),
                (Annotate(1, 0, around), Split(1, 1, 100, (threads,)), Annotate(1, 2, THREAD)),
                replace(GPU, max_shared_memory_per_block=least, max_local_memory_per_block=12),
            )
            for rows in (3, 4)
            for around in (BLOCK, THREAD_Y)
            for threads in (1, 6, 8, 32, 64, 96)
            for least in (0, 16, 48, 512)
        ),
    ],
)
def test_custom_schedules_are_refused_for_the_reason_of_the_lowering(
    dag: ComputeDAG, steps: tuple[Step, ...], hardware: HardwareParams
) -> None:
    (said,) = gpu_refusals(statement_nests(replay(dag, steps)), hardware, 1)
    assert REASONS[said] == said_by_lowering(dag, steps, hardware)


def test_what_is_computed_outside_of_the_threads_is_shared_whatever_its_name() -> None:
    dag = window()
    steps = (Split(2, 0, 8, (4,)), ComputeAt(1, 2, 0), Annotate(2, 0, BLOCK), Annotate(2, 1, THREAD))
    nests = statement_nests(replay(dag, steps))
    (said,) = gpu_refusals(nests, replace(GPU, max_shared_memory_per_block=23), 1)
    assert REASONS[said] is Limit.SHARED
    assert not gpu_refusals(nests, replace(GPU, max_shared_memory_per_block=24, max_local_memory_per_block=0), 1).any()


def test_the_limits_of_a_usual_gpu_let_most_programs_pass() -> None:
    (space,) = build_spaces(gpu_task_of("m", matmul(512, 512, 512)), SearchOptions())
    rows = space.sample(np.random.default_rng(0), 200)
    assert sum(int(space.legal(group).sum()) for _, group in space.groups(rows)) > 50
