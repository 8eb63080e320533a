"""Building and running together, and options as text."""

import math

import pytest

from retune.compiler.core.errors import OptionError
from retune.compiler.measure.builder import LocalBuilder
from retune.compiler.measure.measurer import LocalMeasurer
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import MeasureStatus
from retune.compiler.measure.runner import LocalRunner
from tests.support.ir_kernels import steps, task


def test_measuring_joins_what_building_and_running_found() -> None:
    options = MeasureOptions(repeat=2, min_repeat_ms=0.2)
    build_func = "tests.support.ir_kernels:build"
    runner = LocalRunner(options, build_func=build_func, reference_steps="tests.support.ir_kernels:reference")
    with LocalMeasurer(LocalBuilder(n_parallel=2, build_func=build_func), runner) as measurer:
        candidates = [steps(text) for text in ("good", "lowering-error", "wrong", "crash", "good")]
        results = measurer.measure(task(), candidates, best_seconds=math.inf)
    assert [result.status for result in results] == [
        MeasureStatus.OK,
        MeasureStatus.COMPILE_HOST,
        MeasureStatus.WRONG_ANSWER,
        MeasureStatus.RUNTIME_DEVICE,
        MeasureStatus.OK,
    ]
    assert [bool(result.costs) for result in results] == [True, False, False, False, True]
    assert [bool(result.error) for result in results] == [False, True, True, True, False]
    assert all(result.build_seconds > 0 for result in results)
    assert results[0].run_seconds > 0


def test_options_survive_their_text() -> None:
    options = MeasureOptions(threads=2, min_repeat_ms=1.5, check=False)
    assert MeasureOptions.from_json(options.to_json()) == options
    assert options.to_json() == MeasureOptions(2, min_repeat_ms=1.5, check=False).to_json()
    for text in ("no json", '{"unknown": 1}', "[]"):
        with pytest.raises(OptionError):
            MeasureOptions.from_json(text)


@pytest.mark.parametrize("change", [{"threads": 0}, {"run_timeout_s": 0}, {"give_up_factor": 0.5}, {"seed": -1}])
def test_invalid_measure_options_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(OptionError, match=next(iter(change))):
        MeasureOptions(**change)  # type: ignore[arg-type]


def test_programs_that_are_built_beside_the_timing_keep_their_places() -> None:
    """Small groups are timed as they come, in whatever order they were built."""
    options = MeasureOptions(repeat=1, min_repeat_ms=0.2)
    build_func = "tests.support.ir_kernels:build"
    runner = LocalRunner(options, build_func=build_func, reference_steps="tests.support.ir_kernels:reference")
    with LocalMeasurer(LocalBuilder(build_func=build_func, lane=runner.cpus), runner) as measurer:
        names = ["good", "lowering-error", "wrong", "good", "schedule-error"] * 4
        results = measurer.measure(task(), [steps(name) for name in names])
    ok, refused, wrong, invalid = (
        MeasureStatus.OK,
        MeasureStatus.COMPILE_HOST,
        MeasureStatus.WRONG_ANSWER,
        MeasureStatus.INSTANTIATION,
    )
    assert [result.status for result in results] == [ok, refused, wrong, ok, invalid] * 4
