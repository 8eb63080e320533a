"""Which lane holds what: the layouts of PTX's matrix instructions."""

import pytest

from retune.compiler.ir.expr import Expr, Var, const
from retune.compiler.ir.tensor_core import COLUMNS, INSTRUCTIONS, ROWS, SUM_ELEMENTS, WARP, AsyncCopy
from retune.compiler.ir.visit import substitute
from tests.support.gpu_buffers import S, X
from tests.support.simt.warpgroups import sum_position


@pytest.mark.parametrize("kind", INSTRUCTIONS)
def test_every_element_lies_in_one_lane(kind: str) -> None:
    instruction = INSTRUCTIONS[kind]
    sides = (
        (instruction.left_position, instruction.left_elements, (ROWS, instruction.depth)),
        (instruction.right_position, instruction.right_elements, (instruction.depth, COLUMNS)),
        (sum_position, SUM_ELEMENTS, (ROWS, COLUMNS)),
    )
    for place, count, (height, width) in sides:
        found = [place(lane, element) for lane in range(WARP) for element in range(count)]
        assert sorted(found) == [(row, column) for row in range(height) for column in range(width)]


def test_the_layouts_are_those_of_the_instruction_set() -> None:
    """Facts of the PTX manual: groupID is lane // 4, threadID_in_group is lane % 4."""
    half, single = INSTRUCTIONS["f16"], INSTRUCTIONS["tf32"]
    lane, group, thread = 22, 5, 2
    assert [half.left_position(lane, e) for e in range(8)] == [
        (group, thread * 2),
        (group, thread * 2 + 1),
        (group + 8, thread * 2),
        (group + 8, thread * 2 + 1),
        (group, thread * 2 + 8),
        (group, thread * 2 + 9),
        (group + 8, thread * 2 + 8),
        (group + 8, thread * 2 + 9),
    ]
    assert [half.right_position(lane, e) for e in range(4)] == [
        (thread * 2, group),
        (thread * 2 + 1, group),
        (thread * 2 + 8, group),
        (thread * 2 + 9, group),
    ]
    assert [single.left_position(lane, e) for e in range(4)] == [
        (group, thread),
        (group + 8, thread),
        (group, thread + 4),
        (group + 8, thread + 4),
    ]
    assert [single.right_position(lane, e) for e in range(2)] == [(thread, group), (thread + 4, group)]
    assert [sum_position(lane, e) for e in range(4)] == [
        (group, thread * 2),
        (group, thread * 2 + 1),
        (group + 8, thread * 2),
        (group + 8, thread * 2 + 1),
    ]


def test_registers_that_are_rounded_together_are_summed_together() -> None:
    """Two registers of a factor of tf32, half of them apart, are of one row of the left or one column of the right."""
    single = INSTRUCTIONS["tf32"]
    for lane in range(WARP):
        left, right = (
            [place(lane, e) for e in range(n)] for place, n in ((single.left_position, 4), (single.right_position, 2))
        )
        assert [row for row, _ in left[:2]] == [row for row, _ in left[2:]]
        assert right[0][1] == right[1][1]


def test_a_layout_of_an_expression_is_that_of_its_values() -> None:
    lane = Var("lane")
    for kind in INSTRUCTIONS.values():
        for element in range(kind.left_elements):
            row, depth = kind.left_position(lane, element)
            for number in (0, 13, 31):
                known: dict[Expr, Expr] = {lane: const(number)}
                place = kind.left_position(number, element)
                assert (substitute(row, known), substitute(depth, known)) == (const(place[0]), const(place[1]))


def test_a_copy_reads_like_one() -> None:
    copy = AsyncCopy(S, (const(4),), X, (const(1), const(8)), 4)
    assert str(copy) == "copy s[4] = x[1, 8] by 4"
    lane = Var("lane")
    guarded = AsyncCopy(S, (lane,), X, (const(1), lane), 4, lane < 9)
    assert str(guarded) == "copy s[lane] = x[1, lane] by 4 where (lane < 9)"
    assert str(guarded.map_exprs(lambda expr: substitute(expr, {lane: const(2)}))) == "copy s[2] = x[1, 2] by 4"
