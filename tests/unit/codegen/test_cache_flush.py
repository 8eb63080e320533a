"""The flush kernel changes no content, and touches every line of its ranges and none after them."""

import ctypes
import mmap
import subprocess
import sys

import numpy as np
import pytest

from retune.compiler.codegen.cache_flush import LINE, RANGES, flush_kernel
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.loader import load_kernels

pytestmark = pytest.mark.skipif(flush_kernel() is None, reason="this CPU has no flush instruction that we know")


def flush(address: int, lines: int, slot: int) -> None:
    """Flush so many lines from `address` on, as the range at `slot` of the table."""
    kernel = flush_kernel()
    assert kernel is not None
    table = aligned_array((RANGES, 2), "int64")
    table[...] = 0
    table[slot] = address, lines
    load_kernels([kernel])[kernel.name].bind([table], threads=1)()


@pytest.mark.parametrize("slot", [0, 1, RANGES - 1])
def test_flushing_keeps_the_content(slot: int) -> None:
    array = aligned_array((1 << 19,), "float32")
    array[...] = np.arange(array.size)
    flush(array.ctypes.data, array.nbytes // LINE, slot)
    assert np.array_equal(array, np.arange(array.size, dtype=np.float32))


def flush_before_a_guard_page(lines: int) -> None:
    """Flush from the start of a page that an inaccessible one follows."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    flush(address, lines, slot=0)


@pytest.mark.parametrize(("excess", "returncode"), [(0, 0), (1, -11)])
def test_exactly_the_given_lines_are_flushed(excess: int, returncode: int) -> None:
    """A flush is checked like a load, so one line too many faults in the guard page."""
    code = f"from {__name__} import flush_before_a_guard_page as f; f({mmap.PAGESIZE // LINE + excess})"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == returncode
