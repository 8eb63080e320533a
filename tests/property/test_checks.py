"""What checks the random programs notices kernels that are wrong in each of the ways that they could be."""

import numpy as np
import pytest

from retune.compiler.measure.processes.worker_process import WorkerLostError, WorkerProcess
from retune.compiler.runtime.artifact import KernelArtifact
from tests.support import ir_kernels
from tests.support.property.checks import _run
from tests.support.tiers import long_rows

IN_A_GAP, A_PAGE = 100, 1024
"""Elements of an array that ends before its fence, because of its alignment, and of one that fills a page."""


def runs(behavior: str, elements: int) -> tuple[np.ndarray, np.ndarray]:
    """What a kernel of `tests.support.ir_kernels` computes close to the upper fence, and close to the lower one."""
    dag = ir_kernels.task(elements).dag
    values = {dag.inputs[0]: np.linspace(-1, 1, elements, dtype=np.float32)}
    artifact: KernelArtifact = ir_kernels.artifact(behavior, elements=elements)
    (first,), (second,) = (_run(artifact, dag, values, 1, at_start) for at_start in (False, True))
    return first, second


def test_a_right_kernel_gives_the_same_twice() -> None:
    first, second = runs("good", IN_A_GAP)
    np.testing.assert_array_equal(first, 2 * np.linspace(-1, 1, IN_A_GAP, dtype=np.float32))
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("behavior", ["past the end", "workspace"])
def test_a_write_into_a_gap_is_damage(behavior: str) -> None:
    with pytest.raises(AssertionError, match="written past the end"):
        runs(behavior, IN_A_GAP)


@pytest.mark.parametrize("behavior", ["reads past the end", "unfinished", "nothing"])
def test_uninitialized_result_differs_between_fillers(behavior: str) -> None:
    first, second = runs(behavior, IN_A_GAP)
    assert first.tobytes() != second.tobytes()


@pytest.mark.parametrize(
    ("behavior", "elements"),
    long_rows(
        [("past the end", A_PAGE), ("reads before the start", IN_A_GAP)],
        [
            ("past the end", A_PAGE),
            ("reads past the end", A_PAGE),
            ("before the start", A_PAGE),
            ("reads before the start", A_PAGE),
            ("before the start", IN_A_GAP + 12),
            ("reads before the start", IN_A_GAP),
            ("writes its input", IN_A_GAP),
        ],
    ),
)
def test_an_access_beyond_a_fence_ends_the_process(behavior: str, elements: int) -> None:
    with WorkerProcess() as worker, pytest.raises((WorkerLostError, AssertionError)) as lost:
        worker.call(f"{__name__}:runs", behavior, elements, timeout_s=120)
    if isinstance(lost.value, WorkerLostError):
        assert lost.value.signal_name == "SIGSEGV"
    else:  # a write near the upper fence is found in the lower gap, before the second run meets the lower fence
        assert "before the start" in str(lost.value)
