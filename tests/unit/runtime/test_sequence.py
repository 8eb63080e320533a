"""Kernels run one after the other without the interpreter."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.runtime.sequence import KernelSequence
from tests.support.ir_kernels import ELEMENTS, artifact


def test_kernels_run_in_order_on_what_they_are_bound_to() -> None:
    arrays = [aligned_array((ELEMENTS,), "float32") for _ in range(4)]
    kernel = load_kernels([artifact("good")])["kernel"]
    bound = [kernel.bind(pair, 1) for pair in pairwise(arrays)]
    sequence = KernelSequence(bound)
    arrays[0][...] = np.arange(ELEMENTS)
    sequence()
    np.testing.assert_array_equal(arrays[3], 8 * np.arange(ELEMENTS))
    other = aligned_array((ELEMENTS,), "float32")
    other[...] = 1
    bound[0].rebind(0, other)
    del other
    sequence()
    np.testing.assert_array_equal(arrays[3], np.full(ELEMENTS, 8))
    KernelSequence([])()


def test_the_first_failure_ends_the_sequence_and_is_named() -> None:
    arrays = [aligned_array((ELEMENTS,), "float32") for _ in range(3)]
    arrays[0][...], arrays[2][...] = 1, 0
    loaded = load_kernels([artifact("good", "fine"), artifact("code 7", "broken")])
    first, second = loaded["fine"].bind(arrays[:2], 1), loaded["broken"].bind(arrays[1:], 1)
    with pytest.raises(ArtifactError, match="kernel broken failed with code 7"):
        KernelSequence([first, second, loaded["fine"].bind(arrays[1:], 1)])()
    np.testing.assert_array_equal(arrays[1], np.full(ELEMENTS, 2))
    assert not arrays[2].any()


@pytest.mark.parametrize(
    ("work", "threads"),
    [
        ([(0, 50_000), (0, 50_000)], [2, 2]),  # threads still spin
        ([(0, 300_000), (400_000, 60_000)], [1, 1]),
        ([(0, 300_000), (400_000, 0), (0, 900_000), (400_000, 0)], [1, 2, 2, 1]),
        ([(400_000, 900_000)], [2]),
    ],
)
def test_kernels_run_alone_where_sleeping_threads_save_too_little(
    work: list[tuple[int, int]], threads: list[int]
) -> None:
    arrays = [aligned_array((ELEMENTS,), "float32") for _ in range(2)]
    names = [f"k{number}" for number in range(len(work))]
    loaded = load_kernels([replace(artifact("good", name), work=pair) for name, pair in zip(names, work, strict=True)])
    bound = [loaded[name].bind(arrays, 2) for name in names]
    KernelSequence(bound)
    assert [kernel.threads for kernel in bound] == threads
