"""Real programs of the code generator: built, checked against the untuned one, and timed."""

from retune.compiler import te
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.measure.measurer import LocalMeasurer
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import MeasureStatus
from retune.compiler.model.base import RandomModel
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.steps import load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy


def _dense() -> SearchTask:
    """relu(a @ w) with w a constant that may be packed; the extents divide nothing evenly."""
    a = te.placeholder((30, 44), name="a")
    w = te.placeholder((44, 72), name="w")
    k = te.reduce_axis(44, "k")
    product = te.compute(
        (30, 72),
        lambda i, j: te.sum(a[i, k] * w[k, j], k),
        name="product",
        attrs={"layout_free_placeholders": (w,)},
    )
    out = te.compute((30, 72), lambda i, j: te.maximum(product[i, j], 0.0), name="out")
    return SearchTask("dense", ComputeDAG([a, w, out]), Target.host(), HardwareParams(num_cores=1))


def test_programs_of_the_search_compute_what_the_untuned_program_computes() -> None:
    task = _dense()
    candidates = SketchPolicy(task, RandomModel(0), SearchOptions(), 0).ask(10, 0)
    programs = [(), default_steps(task.dag), *(load_steps(candidate.steps) for candidate in candidates)]
    with LocalMeasurer.with_options(MeasureOptions(repeat=1, min_repeat_ms=0.5), n_parallel=2) as measurer:
        results = measurer.measure(task, programs)
    assert [result.status for result in results] == [MeasureStatus.OK] * len(programs), [r.error for r in results]
    assert all(result.costs[0] > 0 for result in results)
