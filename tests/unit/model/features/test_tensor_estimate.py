"""What the analytical model makes of products on tensor cores: clearly better programs before clearly worse ones."""

import pytest

from retune.compiler.core.gpu_facts import facts_of
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.task import SearchTask
from tests.support.feature_programs import features_of
from tests.support.tensor_core_products import PRODUCTS, product, tensor_space, with_lengths

TARGET = Target("cuda -arch=sm_90 -math=tf32")
LARGE = {"rows": 64, "columns": 64, "row_warps": 2, "column_warps": 4, "steps": 2, "depth": 3}
"""256 sums of each of 8 warps a thread: one block at a time on a multiprocessor."""


def cycles(dag: ComputeDAG, target: Target = TARGET, /, **lengths: int) -> float:
    """The cycles that a program should take."""
    return sum(one["estimate_cycles"] for one in statements(dag, target, **lengths).values())


def statements(dag: ComputeDAG, target: Target = TARGET, /, **lengths: int) -> dict[str, dict[str, float]]:
    """The features of its statements."""
    task = SearchTask("t", dag, target, hardware_of(target, 1))
    return features_of(task, with_lengths(tensor_space(task.dag, target, task.hardware), **lengths))[0]


def matmul(n: int, dtype: str = "float16") -> ComputeDAG:
    return product(n, n, n, dtype)


@pytest.mark.parametrize(
    ("better", "worse", "times"),
    [
        ({}, {"depth": 1}, 1.5),  # copies under way while others are multiplied
        ({}, {"left": 2, "right": 2}, 1.01),  # 16 bytes a copy, not 4
        ({}, {"rows": 16, "row_warps": 8}, 1.2),  # what a warp loads is multiplied more often
        ({"steps": 4}, {"steps": 1}, 1.08),  # fewer barriers
        ({}, {"row_warps": 1, "column_warps": 1}, 1.3),  # what a block fetches is shared by more warps
        ({}, {"left": 1}, 1.5),  # halves on their own are not copied asynchronously
    ],
)
def test_tensor_core_programs_have_distinct_estimates(
    better: dict[str, int], worse: dict[str, int], times: float
) -> None:
    dag = matmul(4096)
    assert cycles(dag, **{**LARGE, **worse}) > times * cycles(dag, **{**LARGE, **better})


def test_blocks_that_run_together_hide_each_others_waits() -> None:
    """Without a pipeline a block of 64 x 64 waits too, but five others of its multiprocessor multiply meanwhile."""
    dag = matmul(4096)
    small = {"rows": 32, "columns": 32, "row_warps": 2, "column_warps": 2, "steps": 2}
    lost = cycles(dag, **small, depth=1) / cycles(dag, **small, depth=3)
    assert lost < 0.75 * cycles(dag, **{**LARGE, "depth": 1}) / cycles(dag, **LARGE)


def test_a_few_turns_of_small_tiles_take_as_long_as_their_copies() -> None:
    """Of 64 x 64 sums in 32 turns on its own multiprocessor each waits for memory, the less the deeper."""
    dag = product(64, 64, 1024)
    lengths = {"rows": 16, "columns": 16, "row_warps": 4, "column_warps": 4, "steps": 2}
    found = [cycles(dag, **lengths, depth=depth) for depth in (1, 2, 3, 4)]
    assert found == sorted(found, reverse=True)
    assert found[0] - found[1] > 32 * 100


@pytest.mark.parametrize(("dtype", "share"), [("float16", 1.0), ("float32", 0.5)])
def test_a_large_product_takes_little_longer_than_tensor_cores_do(dtype: str, share: float) -> None:
    facts = facts_of("sm_90")
    least = 4096**3 / facts.tensor / share / facts.multiprocessors
    assert least < cycles(matmul(4096, dtype), **LARGE) < 1.5 * least


@pytest.mark.parametrize(("group", "rows", "columns"), [(1, 5, 32), (4, 8, 32), (8, 8, 17), (16, 16, 9)])
def test_a_product_beyond_the_cache_is_read_once_for_the_blocks_that_run_together(
    group: int, rows: int, columns: int
) -> None:
    """132 blocks of 128 x 256, of 64 x 32: in rows they have five rows of A in common and all of B, which is read again
    for the next 132; in groups of 8 rows fewer of both.
    """
    facts = facts_of("sm_90")

    def read(rows: int, columns: int) -> float:
        return (2048 / 132) * 2 * 8192 * (rows * 128 + columns * 256) / facts.bandwidth * facts.clock

    found, one = (cycles(matmul(8192), **LARGE, group=number) for number in (group, 1))
    # As much as is not hidden: a tenth.
    assert found - one == pytest.approx(0.1 * (read(rows, columns) - read(5, 32)), rel=0.02, abs=1e-3 * one)


def test_groups_of_warps_are_preferred_where_a_gpu_has_them() -> None:
    """128 x 256 in 4 x 2 warps of 32 x 128; without groups of four along the rows nothing changes."""
    grouped = {**LARGE, "rows": 32, "row_warps": 4, "columns": 128, "column_warps": 2, "steps": 4, "depth": 4}
    dag, target = matmul(4096), Target("cuda -arch=sm_90a")
    facts = facts_of(target.arch)
    least = 4096**3 / facts.group_tensor / facts.multiprocessors
    assert least < cycles(dag, target, **grouped) < 2 * least  # 8.4 TB/s of the cache feed three quarters of them
    assert cycles(dag, target, **grouped) < 0.9 * cycles(dag, **grouped)
    assert cycles(dag, target, **LARGE) == cycles(dag, **LARGE) > 1.1 * cycles(dag, target, **grouped)
    held = [statements(dag, each, **grouped)["C.mma"]["gpu_registers"] for each in (target, TARGET)]
    assert held[0] < held[1]


def test_the_loop_is_shared_out_among_its_statements() -> None:
    found = statements(matmul(1024), **LARGE)
    assert found["C.left.shared"]["estimate_cycles"] == found["C.right.shared"]["estimate_cycles"] > 0
    busy = 1024**3 / (32 * facts_of("sm_90").tensor)  # on 32 multiprocessors
    assert found["C.mma"]["estimate_cycles"] == pytest.approx(busy, rel=1e-3)
    assert found["C.mma"]["estimate_arithmetic"] == pytest.approx(busy, rel=1e-3)


@pytest.mark.parametrize("name", PRODUCTS)
def test_every_product_has_an_estimate(name: str) -> None:
    assert all(one["estimate_cycles"] > 0 for one in statements(PRODUCTS[name](), depth=3).values())
