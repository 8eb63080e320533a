"""What the analytical model makes of products on CUDA cores: clearly better programs before clearly worse ones."""

import numpy as np
import pytest

from retune.compiler.core.gpu_facts import facts_of
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.schedule.steps import Pipeline, Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.spaces import build_spaces
from tests.support.feature_programs import features_of
from tests.support.tensor_core_products import conv
from tests.support.workloads import matmul

TARGET = Target("cuda -arch=sm_90")
ROWS, COLUMNS, SUM = (32, 1, 16, 8, 1), (32, 1, 16, 4, 2), (128, 16, 2)
"""Blocks, virtual threads, threads and what each of them does of 4096 rows and columns; iterations and steps of the
sum.
"""
USUAL = {"depth": 3, "left": 4, "right": 4}


def program(
    n: int, rows: tuple[int, ...], columns: tuple[int, ...], steps: tuple[int, ...], **widths: int
) -> tuple[SearchTask, tuple[Step, ...]]:
    """A product of n with these tiles."""
    task = SearchTask("t", matmul(n, n, n), TARGET, hardware_of(TARGET, 1))
    (space,) = build_spaces(task, SearchOptions())
    row = np.zeros(space.layout.width, np.int64)
    for split, lengths in zip(space.layout.splits, (rows, columns, steps), strict=True):
        row[split.columns] = lengths
    copies = iter(("left", "right"))
    for width in space.layout.widths:
        name = "depth" if isinstance(space.sketch[width.step], Pipeline) else next(copies)
        row[width.column] = {**USUAL, **widths}[name]
    return task, space.steps(row)


def cycles(
    n: int = 4096,
    rows: tuple[int, ...] = ROWS,
    columns: tuple[int, ...] = COLUMNS,
    steps: tuple[int, ...] = SUM,
    **widths: int,
) -> float:
    """The cycles that a program should take."""
    found, _ = features_of(*program(n, rows, columns, steps, **widths))
    return sum(one["estimate_cycles"] for one in found.values())


def test_a_large_product_takes_little_longer_than_its_arithmetic() -> None:
    facts = facts_of("sm_90")
    least = 4096**3 / facts.lanes / facts.multiprocessors
    assert least < cycles() < 1.4 * least


def test_what_is_copied_ahead_is_not_waited_for() -> None:
    """With one block of few warps on a multiprocessor; where many run, they hide each other's waits."""
    few = {"n": 1024, "rows": (16, 1, 8, 8, 1), "columns": (8, 1, 16, 4, 2), "steps": (64, 8, 2)}
    found = [cycles(**few, depth=depth) for depth in (1, 2, 3)]  # type: ignore[arg-type]
    assert found[0] > 1.3 * found[1] >= found[2]


@pytest.mark.parametrize(
    ("worse", "times"),
    [
        ({"rows": (128, 1, 16, 2, 1), "columns": (128, 1, 16, 2, 1)}, 1.4),  # 4 sums, not 64: loads outnumber them
        ({"steps": (2048, 2, 1)}, 1.2),  # a barrier every 2 steps
        ({"left": 1, "right": 1}, 1.02),  # 4 bytes a copy, not 16
        ({"columns": (32, 8, 16, 1, 1)}, 1.05),  # columns one by one instead of 8 side by side
    ],
)
def test_tiled_programs_have_distinct_estimates(worse: dict[str, tuple[int, ...]], times: float) -> None:
    assert cycles(**worse) > times * cycles()  # type: ignore[arg-type]


def test_the_loop_is_shared_out_among_its_statements() -> None:
    found, _ = features_of(*program(4096, ROWS, COLUMNS, SUM))
    assert found["A.shared"]["estimate_cycles"] == found["B.shared"]["estimate_cycles"] > 0
    facts = facts_of("sm_90")
    busy = 8 * 4096**3 / 1024 / facts.lanes  # of 1024 blocks the multiprocessor with most of them has 8
    assert found["C.local"]["estimate_cycles"] == pytest.approx(busy, rel=1e-3)


def test_what_registers_have_no_room_for_takes_longer() -> None:
    """512 threads with 128 registers each have room for 64 sums, hardly for what is multiplied, and not for 128."""
    found = [cycles(rows=(4096 // 32 // each, 1, 32, each, 1), columns=(32, 1, 16, 4, 2)) for each in (8, 16)]
    assert found[1] > 1.5 * found[0]


def test_restarting_pipelines_cost_their_fill() -> None:
    """A convolution that goes through its window outside of the channels fills its pipeline nine times."""
    dag = conv(28, (128, 128), 3, "float32", "float32")
    task = SearchTask("t", dag, TARGET, hardware_of(TARGET, 1))
    (space,) = build_spaces(task, SearchOptions())
    row = np.zeros(space.layout.width, np.int64)
    tiles = [(2, 1, 1, 1, 1), (7, 1, 4, 1, 1), (7, 1, 4, 1, 1), (8, 1, 8, 2, 1)]
    found = []
    for window in ((1, 3, 1), (3, 1, 1)):
        for split, lengths in zip(space.layout.splits, [*tiles, window, window, (16, 8, 1)], strict=True):
            row[split.columns] = lengths
        for width in space.layout.widths:
            row[width.column] = 2
        features, _ = features_of(task, space.steps(row))
        found.append(sum(one["estimate_cycles"] for one in features.values()))
    assert found[1] > found[0] + 8 * 600
