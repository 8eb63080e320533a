"""One task for a distribution of shapes: its sample, its measurements, and a whole run in this process."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.codegen.build import build_kernel
from retune.compiler.core.errors import OptionError
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.ir.expr import Expr
from retune.compiler.measure.builder import LocalBuilder
from retune.compiler.measure.measurer import LocalMeasurer
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import BY_SIZE, Measurement, MeasureStatus
from retune.compiler.model.base import RandomModel
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import Step, load_steps
from retune.compiler.schedule.task import SampledShape, SearchTask
from retune.compiler.search.block_search import BlockSearch
from retune.compiler.search.options import SearchOptions
from retune.compiler.tune.by_shape import combine_by_size, log_uniform, represent, with_shapes
from retune.compiler.tune.winners import confirm_fastest, time_again
from tests.support.property.symbolic_programs import check
from tests.support.record_samples import timed_at

SMALL = SearchOptions(population=128, generations=1)
OPTIONS = MeasureOptions(repeat=1, min_repeat_ms=0.1)


@pytest.fixture(scope="module")
def measurer() -> Iterator[LocalMeasurer]:
    with LocalMeasurer.with_options(OPTIONS, 1) as shared:
        yield shared


def _task(*, is_wrong: bool = False) -> SearchTask:
    n, target = te.symbol("n"), Target.host()
    x, w = te.placeholder((n, 16), name="x"), te.placeholder((16, 32), name="w")
    k = te.reduce_axis(16, "k")

    def element(i: Expr, j: Expr) -> Expr:
        product = x[i, k] * w[k, j]
        return te.sum(te.if_then_else(i < 30, product, product * 2.0) if is_wrong else product, k)

    y = te.compute((n, 32), element, "y", {"layout_free_placeholders": (w,)})
    shapes = tuple(SampledShape({"n": size}, weight) for size, weight in ((5, 0.75), (40, 0.25)))
    return SearchTask("product", ComputeDAG([x, w, y]), target, hardware_of(target, 1), shapes=shapes)


def test_a_sample_meets_every_doubling() -> None:
    shapes = log_uniform({"batch": (1, 8), "length": (1, 256)}, 8)
    assert math.isclose(sum(shape.weight for shape in shapes), 1.0)
    for name, high in (("batch", 8), ("length", 256)):
        sizes = [shape.sizes[name] for shape in shapes]
        assert 1 <= min(sizes) <= max(sizes) <= high
    doublings = sorted(int(math.log2(shape.sizes["length"]) + 0.2) for shape in shapes)
    assert all(abs(doubling - number) <= 1 for number, doubling in enumerate(doublings))
    assert log_uniform({"n": (7, 7)}) == (SampledShape({"n": 7}, 1.0),)
    for low, high in ((0, 5), (6, 5)):
        with pytest.raises(OptionError, match="is empty or begins below 1"):
            log_uniform({"n": (low, high)})


def test_an_expected_measurement_is_that_of_the_weighted_shapes() -> None:
    parts = [Measurement((1.0, 3.0)), Measurement((4.0, 2.0))]
    assert Measurement.of_shapes(parts, [0.75, 0.25], ["", ""]).costs == (1.25, 3.25)
    wrong = Measurement((), MeasureStatus.WRONG_ANSWER, "y differs")
    result = Measurement.of_shapes([parts[0], wrong], [0.5, 0.5], ["{}", '{"n": 2}'])
    assert (result.costs, result.status, result.error) == (
        (),
        MeasureStatus.WRONG_ANSWER,
        'for the sizes {"n": 2}: y differs',
    )


def test_a_program_is_checked_at_every_shape(measurer: LocalMeasurer) -> None:
    task = _task()
    right, wrong = (Measurement(artifact=build_kernel(own, (), "product")) for own in (task, _task(is_wrong=True)))
    good, bad = measurer.runner.run(task, [right, wrong])
    assert good.status is MeasureStatus.OK
    assert math.isclose(good.seconds, sum(shape.weight * min(shape.costs) for shape in good.shapes))
    assert [(shape.sizes, shape.weight) for shape in good.shapes] == [('{"n": 5}', 0.75), ('{"n": 40}', 0.25)]
    assert bad.status is MeasureStatus.WRONG_ANSWER
    assert bad.error.startswith('for the sizes {"n": 40}: wrong answer')
    assert [bool(shape.costs) for shape in bad.shapes] == [True, False]


def test_a_wrong_candidate_is_refused(measurer: LocalMeasurer) -> None:
    class Planted:
        """Builds the kernel of another computation for the first candidate."""

        def build(self, _: SearchTask, candidates: Sequence[Sequence[Step]]) -> list[Measurement]:
            wrong, *others = (_task(is_wrong=number == 0) for number in range(len(candidates)))
            assert others
            return [
                Measurement(artifact=build_kernel(own, steps, "product"))
                for own, steps in zip((wrong, *others), candidates, strict=True)
            ]

    task = _task()
    programs = BlockSearch(task, RandomModel(), SMALL).ask(1, 0)
    timed = time_again(task, programs, cast(LocalBuilder, Planted()), measurer.runner)
    (confirmed,) = confirm_fastest([timed], measurer.runner)
    assert confirmed.is_default
    (reason,) = confirmed.rejected
    assert 'WRONG_ANSWER: for the sizes {"n": 40}: wrong answer' in reason


@pytest.mark.long
def test_a_kernel_for_several_sizes_is_right_at_any_size(measurer: LocalMeasurer) -> None:
    task, rng = _task(), np.random.default_rng(0)
    programs = BlockSearch(task, RandomModel(), SMALL).ask(6, 0)
    (confirmed,) = confirm_fastest([time_again(task, programs, measurer.builder, measurer.runner)], measurer.runner)
    assert confirmed.results[-1].status is MeasureStatus.OK
    # Each is the fastest at one shape, so that both are in the kernel.
    times = [(1.0, 9.0), (9.0, 1.0), *[(9.0, 9.0)] * (len(programs) - 2)]
    built = measurer.builder.build(task, [load_steps(program.steps) for program in programs])
    results = [
        replace(
            Measurement.of_shapes([Measurement((cost,)) for cost in costs], [0.75, 0.25], ["a", "b"]),
            artifact=build.artifact,
        )
        for build, costs in zip(built, times, strict=True)
    ]
    combined = combine_by_size(task, programs, [replace(result, artifact=results[0].artifact) for result in results])
    assert combined is not None
    assert combined.mutation == BY_SIZE
    for steps in (combined.steps, confirmed.program.steps):
        kernel = build_kernel(task, load_steps(steps), "kernel")
        for size in (0, 1, 5, 13, 41):
            check(kernel, [*task.dag.inputs, *task.dag.outputs], {"n": size}, rng, threads=1)
    assert combine_by_size(task.at({"n": 5}), programs, results) is None


def test_many_shapes_have_representatives_of_equal_weight() -> None:
    shapes = [SampledShape({"n": size}, 1 / 40) for size in range(1, 41)]
    few = [(shape.sizes["n"], round(shape.weight, 3)) for shape in represent(shapes, 4)]
    assert few == [(6, 0.25), (16, 0.25), (26, 0.25), (36, 0.25)]
    assert represent(shapes[::-1], 40) == tuple(shapes)


def test_records_of_other_shapes_are_compared_at_those_of_the_task() -> None:
    record = timed_at("key", {5: 1.0, 40: 3.0, 80: 9.0})
    fitted = record.over(_task().sample)
    assert fitted is not None
    assert fitted.seconds == 0.75 * 1.0 + 0.25 * 3.0
    assert timed_at("key", {5: 1.0}).over(_task().sample) is None
    assert record.over({}) is record


def test_a_task_has_the_sample_of_its_own_symbols() -> None:
    sample = [SampledShape({"batch": batch, "length": length}, 0.25) for batch in (1, 2) for length in (5, 9)]
    shaped = with_shapes(_task(), {"n": "length"}, sample)
    assert shaped is not None
    assert [(shape.sizes, shape.weight) for shape in shaped.shapes] == [({"n": 5}, 0.5), ({"n": 9}, 0.5)]
    assert with_shapes(_task(), {}, sample) is None
