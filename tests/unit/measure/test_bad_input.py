"""Options, candidates and tasks that make no sense cost a sentence or one result, never the run."""

from typing import Any

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import NotYetError, OptionError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.measure.builder import LocalBuilder
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import MeasureStatus
from retune.compiler.measure.runner import LocalRunner
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import Annotate, Split, Step
from retune.compiler.schedule.task import SearchTask
from tests.support import ir_kernels


def doubling(elements: int) -> SearchTask:
    x = te.placeholder((elements,), name="x")
    dag = ComputeDAG([x, te.compute((elements,), lambda i: x[i] * 2.0, "y")])
    return SearchTask("doubling", dag, Target.host(), HardwareParams(1))


@pytest.mark.parametrize(
    "option",
    [
        {"threads": 0},
        {"threads": 1.5},
        {"threads": "2"},
        {"number": 0},
        {"number": 2.5},
        {"repeat": None},
        {"seed": -1},
        {"run_timeout_s": 0},
        {"run_timeout_s": float("nan")},
        {"build_timeout_s": -1},
        {"min_repeat_ms": -1},
        {"min_repeat_ms": float("inf")},
        {"cooldown_interval": "1"},
        {"run_timeout_s": "10"},
        {"rotate_bytes": 0.5},
    ],
)
def test_an_option_is_named(option: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(option))):
        MeasureOptions(**option)


@pytest.mark.parametrize(
    "option", [{"n_parallel": 0}, {"n_parallel": 1.5}, {"timeout": 0}, {"timeout": "1"}, {"timeout": float("nan")}]
)
def test_a_builder_has_processes_and_time(option: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="at least one process and some time"):
        LocalBuilder(**option)


@pytest.mark.parametrize("build_func", [lambda *_: None, "build", "a:b.c", ":b", 5, None])
def test_what_builds_can_be_found_by_other_processes(build_func: Any) -> None:
    with pytest.raises(OptionError, match="a function of a module that other processes can import"):
        LocalBuilder(build_func=build_func)
    with pytest.raises(NotYetError, match="Android"):
        LocalBuilder(build_func="ndk")


def test_a_function_of_a_module_builds() -> None:
    with LocalBuilder(n_parallel=1, build_func=ir_kernels.build) as builder:
        (result,) = builder.build(ir_kernels.task(), [ir_kernels.steps("good")])
    assert result.status is MeasureStatus.OK, result.error


@pytest.mark.parametrize("candidate", [None, 5, (1,), ("SP",), (None,)])
def test_a_candidate_is_a_list_of_steps(candidate: Any) -> None:
    with LocalBuilder(n_parallel=1) as builder, pytest.raises(OptionError, match="a candidate is a list of steps"):
        builder.build(doubling(8), [candidate])


def test_extreme_steps_and_tasks_larger_than_memory_cost_one_result_each() -> None:
    invalid, failed = MeasureStatus.INSTANTIATION, MeasureStatus.COMPILE_HOST
    cases: list[tuple[Step, MeasureStatus]] = [
        (Split(1, 0, 8, (0,)), invalid),
        (Split(1, 0, 8, (-3,)), invalid),
        (Split(1, 9, 8, (2,)), invalid),
        (Split(1, 0, 8, (None,)), invalid),
        (Split(1, 0, 8, (np.array([2, 4]),)), failed),
        (Annotate(1, 0, 4), failed),
    ]
    fine = doubling(8)
    with LocalBuilder(n_parallel=1) as builder, LocalRunner() as runner:
        results = builder.build(fine, [(step,) for step, _ in cases])
        assert [result.status for result in results] == [status for _, status in cases]
        for elements in (1 << 33, 1 << 44):
            (result,) = runner.run(doubling(elements), builder.build(doubling(elements), [()]))
            assert result.status is MeasureStatus.RUNTIME_DEVICE
            assert "the buffers of" in result.error
            assert "GiB" in result.error
        (after,) = runner.run(fine, builder.build(fine, [()]))
        assert after.status is MeasureStatus.OK, after.error
