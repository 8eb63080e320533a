"""Results computed from large constants: remembered, or shared."""

import weakref

import numpy as np

from retune.compiler.graph.ir import Array
from retune.compiler.graph.partition.memoize import MemoizedConstants, SharedConstants, cache_constants, memoize

LARGE = np.ones((512, 600), np.float32)


def _counted(calls: list[str], source: Array, what: str = "negate") -> Array:
    def compute() -> Array:
        calls.append(what)
        return -source

    return memoize(what, [source, np.array([1.0], np.float32)], compute)


def test_nothing_is_remembered_outside() -> None:
    calls: list[str] = []
    for _ in range(2):
        _counted(calls, LARGE)
    assert len(calls) == 2


def test_the_same_computation_on_the_same_memory_is_made_once() -> None:
    calls: list[str] = []
    with cache_constants(MemoizedConstants(1 << 30)):
        one = _counted(calls, LARGE)
        assert _counted(calls, LARGE.view()) is one
        assert _counted(calls, LARGE, "other") is not one
        assert _counted(calls, LARGE.T) is not one
        _counted(calls, LARGE.copy())
    assert calls == ["negate", "other", "negate", "negate"]


def test_small_constants_are_computed_every_time() -> None:
    calls: list[str] = []
    with cache_constants(MemoizedConstants(1 << 30)):
        for _ in range(2):
            _counted(calls, LARGE[:2])
    assert len(calls) == 2


def test_only_so_many_bytes_are_kept() -> None:
    calls: list[str] = []
    with cache_constants(MemoizedConstants(LARGE.nbytes)):
        for what in ("one", "one", "two", "one"):
            _counted(calls, LARGE, what)
    assert calls == ["one", "two", "one"]


def test_a_small_operand_counts_by_its_content() -> None:
    store = MemoizedConstants(1 << 30)
    found = [store.result("x", [LARGE, np.array([number], np.float32)], lambda: np.zeros(1)) for number in (1, 1, 2)]
    assert found[0] is found[1]
    assert found[0] is not found[2]


def test_equal_read_only_results_are_one_array_while_it_is_held() -> None:
    store = SharedConstants()

    def result(number: float, index: int = 0) -> Array:
        array = LARGE.copy()
        array.reshape(-1)[index] = number
        array.flags.writeable = False
        return store.result("pack", [], lambda: array)

    first = result(2.0)
    assert result(2.0) is first
    assert result(2.0, index=1) is not first
    assert result(3.0) is not first
    assert store.result("pack", [], first.copy) is not first  # somebody may write to it
    holder = weakref.ref(first)
    del first
    assert holder() is None


def test_arrays_that_differ_between_the_sampled_elements_are_not_shared() -> None:
    store = SharedConstants()
    first, other = LARGE.copy(), LARGE.copy()
    other.reshape(-1)[1] = 5.0
    first.flags.writeable = other.flags.writeable = False
    assert store.result("pack", [], lambda: first) is first
    assert store.result("pack", [], lambda: other) is other
