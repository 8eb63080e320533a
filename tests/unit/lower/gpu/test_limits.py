"""What no GPU could launch is refused before code is made of it, and loops that cannot be bound as they are."""

from dataclasses import replace

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import LoweringError
from retune.compiler.core.target import HardwareParams
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate, CacheRead, ComputeAt, Split, Step
from tests.support.simt.execute import execute
from tests.support.small_computations import doubled, matmul, sum_and_peak, window
from tests.support.workloads import GPU

BLOCK, THREAD, THREAD_Y = Annotation.BLOCK_X, Annotation.THREAD_X, Annotation.THREAD_Y
FETCHED = (CacheRead(0, "shared", (2,)), ComputeAt(1, 3, 1), Annotate(3, 0, BLOCK), Annotate(3, 1, THREAD))


def refuse(message: str, dag: ComputeDAG, steps: tuple[Step, ...], hardware: HardwareParams = GPU) -> None:
    with pytest.raises(LoweringError, match=message):
        lower_for_gpu(replay(dag, steps), "k", hardware)


def test_too_many_threads() -> None:
    refuse(
        "k_kernel0: asks for 1025 threads along x, the GPU has 1024; bind shorter", doubled(1025), (Annotate(1, 0, 6),)
    )
    both = (Split(1, 0, 1024, (32,)), Annotate(1, 0, THREAD), Annotate(1, 1, THREAD_Y))
    refuse(
        "asks for 1024 threads in a block, the GPU has 512",
        doubled(1024),
        both,
        replace(GPU, max_threads_per_block=512),
    )
    refuse("asks for 65 threads along z, the GPU has 64", doubled(65), (Annotate(1, 0, Annotation.THREAD_Z),))


def test_too_many_virtual_threads() -> None:
    steps = (Annotate(1, 0, Annotation.VTHREAD),)
    assert lower_for_gpu(replay(doubled(8), steps), "k", GPU, check=True).kernels[0].threads == 1
    refuse("k_kernel0: i.s1 asks for 9 virtual threads, a thread may run 8; bind a shorter", doubled(9), steps)


def test_too_many_blocks() -> None:
    refuse("asks for 65536 blocks along y, the GPU has 65535", doubled(65536), (Annotate(1, 0, Annotation.BLOCK_Y),))


def test_too_much_memory() -> None:
    dag = matmul(4, 16, 8)
    function = lower_for_gpu(replay(dag, FETCHED), "k", GPU, check=True)
    (kernel,) = function.kernels
    assert (kernel.grid, kernel.block, kernel.bytes_of("shared")) == ((4, 1, 1), (16, 1, 1), 32)
    refuse(
        "asks for 32 bytes of shared memory, the GPU has 31; ",
        dag,
        FETCHED,
        replace(GPU, max_shared_memory_per_block=31),
    )
    tile = (Split(2, 0, 8, (4,)), ComputeAt(1, 2, 0), Annotate(2, 0, THREAD))
    (kernel,) = lower_for_gpu(replay(window(), tile), "k", GPU, check=True).kernels
    assert (kernel.bytes_of("local"), kernel.registers) == (24, 6)
    refuse(
        "asks for 24 bytes of local memory, the GPU has 23", window(), tile, replace(GPU, max_local_memory_per_block=23)
    )


def test_a_cpu_is_no_gpu() -> None:
    refuse("k: the hardware parameters are those of a CPU; name a GPU", doubled(8), (), HardwareParams(4))


def test_loops_that_cannot_be_bound_as_they_are() -> None:
    refuse(
        "y: the loop i is bound to parallel, which a GPU lacks; bind it to blockIdx", doubled(8), (Annotate(1, 0, 3),)
    )
    refuse(
        r"C: the loop k.s2 over blockIdx.x reduces, but blocks cannot join results",
        matmul(4, 6, 8),
        (Annotate(2, 2, BLOCK),),
    )
    inside = (Split(2, 0, 8, (4,)), ComputeAt(1, 2, 0), Annotate(2, 0, THREAD))
    refuse(
        "a: the loop i.s1 over threadIdx.x computes what one thread has for itself",
        window(),
        (*inside, Annotate(1, 0, THREAD)),
    )
    refuse(
        "a: the loop i.s1 over blockIdx.x lies inside another stage's kernel",
        window(),
        (*inside, Annotate(1, 0, BLOCK)),
    )
    twice = (Annotate(1, 0, THREAD), Annotate(1, 1, THREAD))
    refuse("t: the loop k.s1 over threadIdx.x is the second one over threadIdx.x; fuse", sum_and_peak(4, 8), twice)
    x, k = te.placeholder((4, 8), name="x"), te.reduce_axis(8, "k")
    total = te.compute((4,), lambda i: te.sum(x[i, k], k), "total")
    dag = ComputeDAG([x, te.compute((4,), lambda i: total[i] + 1.0, "more")])
    within = (Annotate(2, 0, THREAD), ComputeAt(1, 2, 0), Annotate(1, 1, THREAD))
    refuse("total: k.s1 reduces over threadIdx.x inside another loop over threadIdx.x", dag, within)


def test_a_program_that_is_not_bound_runs_in_one_thread() -> None:
    (kernel,) = lower_for_gpu(replay(doubled(8), ()), "k", GPU, check=True).kernels
    assert (kernel.grid, kernel.block) == ((1, 1, 1), (1, 1, 1))


def test_threads_of_two_dimensions() -> None:
    """Rows over y, the reduction of each over x: every row has joined results of its own."""
    steps = (Annotate(1, 0, THREAD_Y), Split(1, 1, 20, (6,)), Annotate(1, 2, THREAD))
    function = lower_for_gpu(replay(sum_and_peak(3, 20), steps), "k", GPU, check=True)
    assert function.kernels[0].block == (6, 3, 1)
    x = np.random.default_rng(0).random((3, 20), "float32")
    total, peak = execute(function, [x])
    np.testing.assert_allclose(total, x.sum(axis=1), rtol=1e-6)
    np.testing.assert_array_equal(peak, x.max(axis=1))


@pytest.mark.parametrize("name", ["", "a b", "2d", "a.b", "é", 'a"b', "x)"])
def test_a_kernel_has_the_name_of_a_function(name: str) -> None:
    with pytest.raises(LoweringError, match="a kernel cannot be called"):
        lower_for_gpu(replay(doubled(8), ()), name, GPU)
