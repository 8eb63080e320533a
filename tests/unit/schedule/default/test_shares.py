"""Reductions that take next to nothing get no trials; whatever reuses data does, and so does a large reduction."""

from retune.compiler import te
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.shares import are_small, moved_bytes, shares_of
from retune.compiler.schedule.task import SearchTask


def product(size: int) -> SearchTask:
    a, b = te.placeholder((size, size), name="a"), te.placeholder((size, size), name="b")
    k = te.reduce_axis(size, "k")
    c = te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    return SearchTask("product", ComputeDAG([a, b, c]), Target.host(), HardwareParams(num_cores=1))


def sums(rows: int, columns: int) -> SearchTask:
    a = te.placeholder((rows, columns), name="a")
    k = te.reduce_axis(columns, "k")
    s = te.compute((rows,), lambda i: te.sum(a[i, k], k), "s")
    return SearchTask("sums", ComputeDAG([a, s]), Target.host(), HardwareParams(num_cores=1))


def test_only_small_reductions_are_small() -> None:
    assert are_small([product(512), sums(64, 64), product(4)], [1, 1, 1]) == (False, True, False)
    assert are_small([product(64), sums(1024, 1024)], [1, 1]) == (False, False)
    assert are_small([product(512), sums(64, 64)], [1, 1000]) == (False, False)
    assert are_small([sums(8, 8)], [1]) == (False,)


def test_shares_count_what_moves_where_little_is_computed() -> None:
    a = te.placeholder((64, 64), name="a")
    copied = ComputeDAG([a, te.compute((64, 64), lambda i, j: a[j, i], "turned")])
    assert shares_of([product(64).dag, copied], [1, 1]) == (0.8, 0.2)
    assert shares_of([product(64).dag, copied], [1, 4]) == (0.5, 0.5)
    assert shares_of([], []) == ()


def test_elements_that_no_read_needs_are_not_moved() -> None:
    table, rows = te.placeholder((1000, 16), name="table"), te.placeholder((4,), "int64", "rows")
    taken = te.compute((4, 16), lambda i, j: table[rows[i], j], "taken")
    assert moved_bytes(ComputeDAG([table, rows, taken])) == 4 * 16 * 4 + 4 * 8 + 4 * 16 * 4
    a = te.placeholder((32,), name="a")
    halved = te.compute((16,), lambda i: a[2 * i] + a[2 * i + 1], "halved")
    assert moved_bytes(ComputeDAG([a, halved])) == (32 + 16) * 4
    assert moved_bytes(product(8).dag) == 3 * 8 * 8 * 4
