"""Buffers of tasks: what passes through the caches, and what there is no room for."""

import numpy as np
import pytest

from retune.compiler.measure import task_buffers
from retune.compiler.measure.task_buffers import Sweeper, TaskBuffers, TaskSetup
from retune.compiler.runtime.artifact import ArgSpec

A, W, OUT = (
    ArgSpec("a", (8,), "float32", False),
    ArgSpec("w", (10,), "float32", False),
    ArgSpec("out", (8,), "float32", True),
)


def test_copies_of_several_constants_make_up_the_pool_together() -> None:
    second = ArgSpec("v", (40,), "float32", False)
    buffers = TaskBuffers.filled((A, W, second, OUT), 0, "key", TaskSetup(constants=(1, 2)))
    places = buffers.places_of_constants(2000)
    assert [len(places[place]) for place in (1, 2)] == [10, 10]
    assert all(address % 64 == 0 for addresses in places.values() for address in addresses)
    pool = buffers.pools[1]
    assert np.array_equal(pool[9, : W.nbytes].view("float32"), buffers.arrays[1].array)
    again = buffers.places_of_constants(1000)
    assert buffers.pools[1] is pool
    assert len(again[1]) == 5


def test_a_constant_as_large_as_the_pool_still_moves() -> None:
    buffers = TaskBuffers.filled((A, W, OUT), 0, "key", TaskSetup(constants=(1,)))
    assert len(set(buffers.places_of_constants(1)[1])) == 2


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
