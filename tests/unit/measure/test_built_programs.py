"""The fastest programs of a task stay built until they are compiled into a network."""

from collections.abc import Sequence

from retune.compiler.measure.record import DEFAULT_SCHEDULE, Measurement, MeasureStatus, TaskProgram
from retune.compiler.schedule.steps import Pragma, dump_steps
from retune.compiler.tune.winners import BuiltPrograms
from tests.support.ir_kernels import build, task

KERNEL = build(task(), (Pragma(0, 0, "good"),), "double")


def program(number: int, mutation: str = "") -> TaskProgram:
    return TaskProgram("", dump_steps((Pragma(0, 0, f"program {number}"),)), mutation=mutation)


def kept_of(measured: Sequence[Measurement], most: int, default: int = -1) -> BuiltPrograms:
    """A round of programs 0, 1, …, of which one may be the default schedule."""
    kept = BuiltPrograms(most)
    programs = [program(number, DEFAULT_SCHEDULE if number == default else "") for number in range(len(measured))]
    kept.keep(task(), programs, measured)
    return kept


def found_in(kept: BuiltPrograms, number: int) -> Measurement | None:
    return kept.find(task(), program(number).steps)


def timed(seconds: float, *, censored: bool = False) -> Measurement:
    return Measurement((seconds, 2 * seconds), censored=censored, artifact=KERNEL)


def test_the_fastest_programs_and_the_default_schedule_are_kept() -> None:
    measured = [timed(9.0), timed(3.0), timed(1.0, censored=True), timed(2.0), timed(4.0)]
    kept = kept_of(measured, most=2, default=0)
    found = [found_in(kept, number) for number in range(5)]
    assert found == [measured[0], measured[1], None, measured[3], None]


def test_later_rounds_take_the_place_of_slower_programs_and_failures_of_none() -> None:
    kept = kept_of([timed(3.0), timed(2.0)], most=2)
    failed = Measurement((), MeasureStatus.WRONG_ANSWER, "off", artifact=KERNEL)
    kept.keep(task(), [program(7), program(8)], [timed(1.0), failed])
    assert [found_in(kept, number) for number in (7, 8, 0, 1)] == [timed(1.0), None, None, timed(2.0)]


def test_programs_of_another_task_are_not_kept_for_this_one() -> None:
    kept = kept_of([timed(1.0)], most=1)
    assert kept.find(task(elements=64), program(0).steps) is None
