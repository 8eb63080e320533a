"""Aligned and fenced arrays. What must stop a process is tried in a worker process."""

import gc
from pathlib import Path

import numpy as np
import pytest

from retune.compiler.measure.processes.worker_process import WorkerLostError, WorkerProcess
from retune.compiler.runtime.artifact import ALIGNMENT
from retune.compiler.runtime.buffers import CANARY, FencedArray, aligned_array, aligned_copy, constant_array

FLOATS_PER_PAGE = 1024


def write_at(elements: int, position: int) -> str:
    """Write one float32 relative to the start of a fenced array; what `damage` says of it."""
    fenced = FencedArray((elements,), "float32")
    _stray(fenced)[position] = 1.0
    return fenced.damage()


def read_at(elements: int, position: int) -> float:
    """Read one float32 relative to the start of a fenced array."""
    return float(_stray(FencedArray((elements,), "float32"))[position])


def write_protected() -> None:
    """Write to a fenced array that forbids it."""
    fenced = FencedArray((4,), "float32")
    fenced.protect(writable=False)
    fenced.array[0] = 1.0


class _Stray:
    """Unchecked access to memory around an array."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def _view(self, position: int) -> np.ndarray:
        strides = (4 * position,)
        return np.lib.stride_tricks.as_strided(self._array, (2,), strides)

    def __setitem__(self, position: int, value: float) -> None:
        self._view(position)[1] = value

    def __getitem__(self, position: int) -> np.float32:
        return np.float32(self._view(position)[1])


def _stray(fenced: FencedArray) -> _Stray:
    return _Stray(fenced.array)


@pytest.mark.parametrize("shape", [(1,), (3, 5), (7, 16, 2), (1024,)])
def test_arrays_are_aligned(shape: tuple[int, ...]) -> None:
    for array in (aligned_array(shape, "float32"), FencedArray(shape, "float32").array):
        assert array.ctypes.data % ALIGNMENT == 0
        assert array.shape == shape
        assert array.flags.c_contiguous


def test_aligned_copy_keeps_values_and_order() -> None:
    original = np.arange(12, dtype=np.int16).reshape(3, 4).T
    copy = aligned_copy(original)
    assert np.array_equal(copy, original)
    assert copy.flags.c_contiguous
    assert copy.ctypes.data % ALIGNMENT == 0


def test_writable_constant_is_copied() -> None:
    array = aligned_array((4, 4), "float32")
    array[...] = 1
    shown = array.view()
    shown.flags.writeable = False
    constant = constant_array(shown)
    array[...] = 2
    assert (constant == 1).all()
    assert constant_array(constant) is constant
    assert np.shares_memory(constant_array(constant[:]), constant)


def test_an_untouched_fence_reports_nothing() -> None:
    fenced = FencedArray((100,), "float32")
    fenced.array[:] = 5.0
    assert fenced.damage() == ""


def test_one_float_past_the_end_is_seen_in_the_gap() -> None:
    assert write_at(100, 100) == "4 bytes written past the end, the first 1 bytes after the last element"


def test_one_float_before_the_start_is_seen_in_the_gap() -> None:
    assert "before the start, the nearest 1 bytes" in write_at(100, -1)


def test_repair_makes_damage_go_away() -> None:
    fenced = FencedArray((100,), "float32")
    _stray(fenced)[101] = 1.0
    assert fenced.damage()
    fenced.repair()
    assert fenced.damage() == ""


def test_a_stray_read_gives_a_huge_number() -> None:
    assert read_at(100, 100) == np.frombuffer(bytes([CANARY] * 4), np.float32)[0] > 1e36


@pytest.mark.parametrize("position", [FLOATS_PER_PAGE, -1])
@pytest.mark.parametrize("access", ["write_at", "read_at"])
def test_a_full_page_is_fenced_on_both_sides(access: str, position: int) -> None:
    with WorkerProcess() as worker, pytest.raises(WorkerLostError) as lost:
        worker.call(f"{__name__}:{access}", FLOATS_PER_PAGE, position, timeout_s=120)
    assert lost.value.signal_name == "SIGSEGV"


def test_forbidden_writes_stop_the_process() -> None:
    with WorkerProcess() as worker, pytest.raises(WorkerLostError) as lost:
        worker.call(f"{__name__}:write_protected", timeout_s=120)
    assert lost.value.signal_name == "SIGSEGV"


def test_memory_lives_as_long_as_a_view_and_no_longer() -> None:
    def mappings() -> int:
        return len(Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())

    fenced = FencedArray((5000,), "float32")
    view = fenced.array[10:20]
    del fenced
    gc.collect()
    view[:] = 3.0
    assert view.sum() == 30.0
    before = mappings()
    for _ in range(200):
        FencedArray((5000,), "float32")
    assert mappings() < before + 100
