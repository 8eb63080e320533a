"""One task for a distribution of shapes: its sample, its measurements, and a whole run in this process."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.codegen.build import build_kernel
from retune.compiler.core.errors import OptionError
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.ir.expr import Expr
from retune.compiler.measure.measurer import LocalMeasurer
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import Measurement, MeasureStatus
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import load_steps
from retune.compiler.schedule.task import SampledShape, SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.tune.by_shape import log_uniform, tune_by_shape, with_shapes
from retune.compiler.tune.tuning_loop import Budget
from tests.support.property.symbolic_programs import check

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


@pytest.mark.long
def test_a_tuned_kernel_is_right_at_any_size(measurer: LocalMeasurer) -> None:
    task, rng = _task(), np.random.default_rng(0)
    (confirmed,) = tune_by_shape([(task, 1.0)], measurer, Budget(6, None), SearchOptions(population=128, generations=1))
    assert confirmed.results[-1].status is MeasureStatus.OK
    assert len(confirmed.results) >= 2
    kernel = build_kernel(task, load_steps(confirmed.program.steps), "kernel")
    for size in (0, 1, 5, 13, 41):
        check(kernel, [*task.dag.inputs, *task.dag.outputs], {"n": size}, rng, threads=1)


def test_a_task_has_the_sample_of_its_own_symbols() -> None:
    sample = [SampledShape({"batch": batch, "length": length}, 0.25) for batch in (1, 2) for length in (5, 9)]
    shaped = with_shapes(_task(), {"n": "length"}, sample)
    assert shaped is not None
    assert [(shape.sizes, shape.weight) for shape in shaped.shapes] == [({"n": 5}, 0.5), ({"n": 9}, 0.5)]
    assert with_shapes(_task(), {}, sample) is None
