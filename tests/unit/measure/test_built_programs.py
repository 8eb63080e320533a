"""The fastest programs of a task stay built until they are compiled into a network."""

from collections.abc import Sequence

from retune.compiler.measure.built_programs import BuiltPrograms
from retune.compiler.measure.record import MeasureStatus
from retune.compiler.measure.results import BuiltProgram, Measurement
from retune.compiler.schedule.steps import Pragma, Step, dump_steps
from retune.compiler.schedule.task import SearchTask
from tests.support.ir_kernels import build, task

KERNEL = build(task(), (Pragma(0, 0, "good"),), "double")


def program(number: int) -> tuple[Step, ...]:
    return (Pragma(0, 0, f"program {number}"),)


def kept_of(
    one: SearchTask, measured: Sequence[Measurement], most: int, default: int = -1
) -> tuple[BuiltPrograms, list[BuiltProgram]]:
    """A round of programs 0, 1, …, of which one may be the default schedule."""
    kept, texts = BuiltPrograms(most), [dump_steps(program(number)) for number in range(len(measured))]
    builds = [BuiltProgram(KERNEL, MeasureStatus.OK, "", float(number)) for number in range(len(measured))]
    kept.keep(one, texts, builds, measured, texts[default] if default >= 0 else "")
    return kept, builds


def found_in(kept: BuiltPrograms, number: int) -> BuiltProgram | None:
    found = kept.find(task(), dump_steps(program(number)))
    return None if found is None else found.built


def timed(seconds: float, *, censored: bool = False) -> Measurement:
    return Measurement((seconds, 2 * seconds), MeasureStatus.OK, "", censored=censored)


def test_the_fastest_programs_and_the_default_schedule_are_kept() -> None:
    measured = [timed(9.0), timed(3.0), timed(1.0, censored=True), timed(2.0), timed(4.0)]
    kept, builds = kept_of(task(), measured, most=2, default=0)
    found = [found_in(kept, number) for number in range(5)]
    assert found == [builds[0], builds[1], None, builds[3], None]


def test_later_rounds_take_the_place_of_slower_programs_and_failures_of_none() -> None:
    kept, builds = kept_of(task(), [timed(3.0), timed(2.0)], most=2)
    texts = [dump_steps(program(number)) for number in (7, 8)]
    failed = Measurement((), MeasureStatus.WRONG_ANSWER, "off")
    kept.keep(task(), texts, builds, [timed(1.0), failed])
    assert [found_in(kept, number) for number in (7, 8, 0, 1)] == [builds[0], None, None, builds[1]]


def test_programs_of_another_task_are_not_kept_for_this_one() -> None:
    kept, _ = kept_of(task(), [timed(1.0)], most=1)
    assert kept.find(task(elements=64), dump_steps(program(0))) is None
