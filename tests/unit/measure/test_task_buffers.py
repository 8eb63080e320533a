"""Buffers of tasks: what passes through the caches, and what there is no room for."""

import numpy as np
import pytest

from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.measure import task_buffers
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.processes import run_worker
from retune.compiler.measure.record import MeasureStatus
from retune.compiler.measure.task_buffers import Sweeper, TaskBuffers, TaskSetup
from retune.compiler.runtime.artifact import ArgSpec, KernelArtifact
from retune.compiler.schedule.steps import Reorder, Split
from retune.compiler.schedule.task import SearchTask
from tests.support.small_computations import matmul

A, W, OUT = (
    ArgSpec("a", (8,), "float32", False),
    ArgSpec("w", (10,), "float32", False),
    ArgSpec("out", (8,), "float32", True),
)


def test_copies_of_several_constants_make_up_the_pool_together() -> None:
    second = ArgSpec("v", (40,), "float32", False)
    buffers = TaskBuffers.filled((A, W, second, OUT), 0, "key", TaskSetup(constants=(1, 2)))
    places = buffers.addresses_of_constants(2000)
    assert [len(places[place]) for place in (1, 2)] == [10, 10]
    assert all(address % 64 == 0 for addresses in places.values() for address in addresses)
    pool = buffers.pools[1]
    assert np.array_equal(pool[9, : W.nbytes].view("float32"), buffers.arrays[1].array)
    again = buffers.addresses_of_constants(1000)
    assert buffers.pools[1] is pool
    assert len(again[1]) == 5


def test_a_constant_as_large_as_the_pool_still_moves() -> None:
    buffers = TaskBuffers.filled((A, W, OUT), 0, "key", TaskSetup(constants=(1,)))
    assert len(set(buffers.addresses_of_constants(1)[1])) == 2


def test_given_inputs_are_what_kernels_see() -> None:
    given = np.arange(8, dtype=np.float32)
    buffers = TaskBuffers.filled((A, OUT), 0, "key", TaskSetup(inputs={0: given}))
    assert np.array_equal(buffers.arrays[0].array, given)


def test_without_a_flush_instruction_more_memory_than_the_caches_hold_is_gone_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_buffers, "flush_kernel", lambda: None)
    monkeypatch.setattr(task_buffers, "last_cache_bytes", lambda: 1000)
    assert TaskBuffers.filled((A, OUT), 0, "key", TaskSetup()).flusher() is None
    sweep = Sweeper()
    sweep()
    sweep()
    assert sweep._scratch.shape == (2000,)
    assert (sweep._scratch == 2).all()


def in_strips(columns: int) -> KernelArtifact:
    """A product with 30 columns in strips of so many, its weight packed: 8 are padded to 32, 10 divide them; 7 would be
    padded to 35, which is too many.
    """
    task = SearchTask("product", matmul(7, 30, 5), Target.host(), HardwareParams(1))
    return build_kernel(task, (Split(2, 1, 30, (columns,)), Reorder(2, (1, 0, 3, 2))), "k")


STRIPS = (8, 10, 7)


@pytest.mark.parametrize("first", STRIPS)
@pytest.mark.parametrize("rotate_bytes", [0, 1 << 16])
def test_kernels_that_pad_a_constant_differently_share_the_buffers_of_a_task(first: int, rotate_bytes: int) -> None:
    options = MeasureOptions(threads=1, rotate_bytes=rotate_bytes, number=1, repeat=1, min_repeat_ms=0)
    run_worker.prepare("product", in_strips(first), TaskSetup(constants=(1,)), options)
    kernels = [in_strips(strip) for strip in STRIPS]
    found = [
        one for one in run_worker.run_stream("product", kernels, float("inf"), options) if not isinstance(one, str)
    ]
    assert [(one.status, one.error) for one in found] == [(MeasureStatus.OK, "")] * len(STRIPS)


def test_copies_of_a_constant_leave_room_for_what_is_padded() -> None:
    kernels = [in_strips(strip) for strip in STRIPS]
    for first in kernels:
        buffers = TaskBuffers.filled(first.args, 0, "key", TaskSetup(constants=(1,)))
        copies = buffers.addresses_of_constants(10_000)[1]
        end = buffers.pools[1].ctypes.data + buffers.pools[1].nbytes
        assert all(end - copies[-1] >= kernel.args[1].nbytes for kernel in kernels)
        apart = copies[1] - copies[0]
        assert all(apart >= kernel.args[1].nbytes for kernel in kernels)


def test_all_packed_forms_of_a_constant_are_flushed() -> None:
    buffers = TaskBuffers.filled(in_strips(8).args, 0, "key", TaskSetup(constants=(1,)))
    before = buffers.nbytes
    for strip in STRIPS:
        buffers.bind(in_strips(strip), 1)
    assert [array.size for array in buffers.flushed] == [160, 150, 7 * 30]
    assert buffers.nbytes == before + 4 * (150 + 160)
