"""The programs of a kernel by size, against their expected time computed by hand."""

from collections.abc import Sequence

from retune.compiler import te
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import Block, SizeLimit, Step
from retune.compiler.schedule.task import SampledShape, SearchTask
from retune.compiler.search.choose_by_size import TimedProgram, choose_by_size


def _task(*sizes: int) -> SearchTask:
    n, m, target = te.symbol("n"), te.symbol("m"), Target.host()
    x = te.placeholder((n, m), name="x")
    k = te.reduce_axis(m, "k")
    shapes = tuple(SampledShape({"n": size, "m": 3}, 1 / len(sizes)) for size in sizes)
    dag = ComputeDAG([x, te.compute((n,), lambda i: te.sum(x[i, k], k), "y")])
    return SearchTask("kernel", dag, target, hardware_of(target, 1), shapes=shapes)


def _program(points: int, *seconds: float, layout: str = "") -> TimedProgram:
    return TimedProgram((Block(1, 0, points),), seconds, layout)


def _choose(programs: Sequence[TimedProgram], most: int = 3) -> tuple[Step, ...]:
    return choose_by_size(_task(4, 16, 64, 256), programs, most)


def test_each_program_is_for_the_sizes_where_it_is_fastest() -> None:
    short, long = _program(1, 1.0, 1.0, 8.0, 9.0), _program(8, 3.0, 3.0, 4.0, 4.0)
    # 32 is as many doublings from 16 as from 64.
    assert _choose([long, short]) == (*short.steps, SizeLimit(1, 0, 32), *long.steps)


def test_no_more_programs_are_chosen_than_allowed() -> None:
    programs = [_program(1 << best, *(1.0 if best == at else 9.0 for at in range(4))) for best in range(4)]
    for most in (1, 2, 3, 4):
        steps = _choose(programs, most)
        assert sum(isinstance(step, Block) for step in steps) == most


def test_a_small_gain_is_not_worth_another_program() -> None:
    first, second = _program(1, 1.0, 1.0, 1.0, 1.0), _program(8, 0.97, 1.01, 1.01, 1.01)
    assert _choose([first, second]) == first.steps


def test_programs_of_one_kernel_have_one_layout_of_constants() -> None:
    short, long = _program(1, 1.0, 1.0, 8.0, 9.0, layout="a"), _program(8, 3.0, 3.0, 4.0, 4.0, layout="b")
    assert _choose([short, long]) == long.steps
    other = _program(4, 2.0, 2.0, 9.0, 9.0, layout="b")
    assert _choose([short, long, other]) == (*other.steps, SizeLimit(1, 0, 32), *long.steps)


def test_weights_decide() -> None:
    n = _task(4, 256)
    first, second = _program(1, 1.0, 10.0), _program(8, 2.0, 9.5)
    assert choose_by_size(n, [first, second], 1) == first.steps
    shapes = (SampledShape({"n": 4, "m": 3}, 0.1), SampledShape({"n": 256, "m": 3}, 0.9))
    heavy = SearchTask("kernel", n.dag, n.target, n.hardware, shapes=shapes)
    assert choose_by_size(heavy, [first, second], 1) == second.steps
    assert choose_by_size(heavy, []) == ()
