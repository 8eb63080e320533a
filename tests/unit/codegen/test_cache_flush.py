"""Taking lines out of the caches: what was flushed takes longer to read, what was not does not change."""

import time

import numpy as np
import pytest

from compiler.codegen.cache_flush import LINE, RANGES, flush_kernel
from compiler.runtime.artifact import Array
from compiler.runtime.buffers import aligned_array
from compiler.runtime.loader import load_kernels

pytestmark = pytest.mark.skipif(flush_kernel() is None, reason="this processor has no flush instruction that we know")


def seconds_to_read(array: Array) -> float:
    start = time.perf_counter()
    array.sum()
    return time.perf_counter() - start


def test_flushed_memory_is_read_more_slowly_and_keeps_its_content() -> None:
    kernel = flush_kernel()
    assert kernel is not None
    table = aligned_array((RANGES, 2), "int64")
    table[...] = 0
    flush = load_kernels([kernel])[kernel.name].bind([table], threads=1)
    array = aligned_array((1 << 19,), "float32")
    array[...] = 1.0
    warm = min(seconds_to_read(array) for _ in range(20))
    table[RANGES - 1] = array.ctypes.data, array.nbytes // LINE
    cold = []
    for _ in range(20):
        flush()
        cold.append(seconds_to_read(array))
    assert np.all(array == 1.0)
    assert min(cold) > 1.1 * warm
