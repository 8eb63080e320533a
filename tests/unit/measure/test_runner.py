"""Running kernels of known behavior: right ones are timed, bad ones cost one result."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from retune.compiler.core.errors import MeasureError
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.processes import run_worker
from retune.compiler.measure.record import Measurement, MeasureStatus
from retune.compiler.measure.runner import LocalRunner
from retune.compiler.measure.task_buffers import TaskBuffers, TaskSetup
from tests.support.ir_kernels import ELEMENTS, artifact, task

OK = MeasureStatus.OK
OPTIONS = MeasureOptions(repeat=2, min_repeat_ms=0.2, run_timeout_s=5.0, give_up_factor=50.0)


def _runner(options: MeasureOptions = OPTIONS, reference: str = "reference") -> LocalRunner:
    return LocalRunner(
        options,
        build_func="tests.support.ir_kernels:build",
        reference_steps=f"tests.support.ir_kernels:{reference}",
    )


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    with _runner() as shared:
        yield shared


def _built(behavior: str, elements: int = 1024) -> Measurement:
    return Measurement(build_seconds=0.01, artifact=artifact(behavior, elements=elements))


def _run(runner: LocalRunner, *behaviors: str, elements: int = 1024) -> list[Measurement]:
    return runner.run(task(elements), [_built(behavior, elements) for behavior in behaviors])


def _one_bad(runner: LocalRunner, behavior: str, elements: int = 1024) -> Measurement:
    """The result of a bad kernel between two good ones, which must not suffer."""
    before, bad, after = _run(runner, "good", behavior, "good", elements=elements)
    assert (before.status, after.status) == (OK, OK), (before.error, after.error)
    assert bad.costs == ()
    return bad


def test_right_kernels_are_timed(runner: LocalRunner) -> None:
    results = [*_run(runner, "good", "good"), *_run(runner, "parallel")]
    assert [result.status for result in results] == [OK] * 3, results
    for result in results:
        assert len(result.costs) == OPTIONS.repeat
        assert all(1e-8 < cost < OPTIONS.run_timeout_s for cost in result.costs)
        assert result.error == ""
        assert result.run_seconds > 0.0


def test_failed_builds_pass_through_in_their_place(runner: LocalRunner) -> None:
    broken = Measurement((), MeasureStatus.BUILD_TIMEOUT, "too slow", 15.0)
    results = runner.run(task(), [broken, _built("good"), broken])
    assert [result.status for result in results] == [broken.status, OK, broken.status]
    assert results[0].error == "too slow"
    assert runner.run(task(), [broken])[0].status is broken.status


def test_a_crash_costs_one_candidate(runner: LocalRunner) -> None:
    bad = _one_bad(runner, "crash")
    assert bad.status is MeasureStatus.RUNTIME_DEVICE
    assert bad.error.startswith("the kernel crashed: the worker process was ended by SIGSEGV")
    assert "Fatal Python error" in bad.error


def test_a_hang_costs_one_candidate(runner: LocalRunner) -> None:
    bad = _one_bad(runner, "hang")
    assert bad.status is MeasureStatus.RUN_TIMEOUT
    assert bad.error == "the kernel took more than 5 s"
    assert bad.run_seconds >= 5.0


@pytest.mark.parametrize(
    "behavior",
    ["past the end", "before the start", "writes its input", "reads past the end", "reads before the start"],
)
def test_a_forbidden_access_to_a_page_crashes(runner: LocalRunner, behavior: str) -> None:
    bad = _one_bad(runner, behavior)
    assert bad.status is MeasureStatus.RUNTIME_DEVICE
    assert "SIGSEGV" in bad.error


@pytest.mark.parametrize(("behavior", "side"), [("past the end", "past the end"), ("before the start", "before the")])
def test_a_forbidden_write_into_a_gap_is_found(runner: LocalRunner, behavior: str, side: str) -> None:
    bad = _one_bad(runner, behavior, elements=100)
    assert bad.status is MeasureStatus.RUNTIME_DEVICE
    assert bad.error.startswith("out of bounds: b: 4 bytes written")
    assert side in bad.error


def test_the_workspace_is_fenced_too(runner: LocalRunner) -> None:
    bad = _one_bad(runner, "workspace", elements=100)
    assert bad.error.startswith("out of bounds: workspace: 4 bytes written past the end")


@pytest.mark.parametrize(
    ("behavior", "text"),
    [
        ("wrong", "wrong answer in b: 1 of 1024 elements differ; worst at (3,): expected"),
        ("unfinished", "1 of 1024 elements differ; worst at (0,)"),
        ("nothing", "1024 of 1024 elements differ"),
        ("wrong later", "right at first, later not: wrong answer in b: 1 of 1024"),
    ],
)
def test_another_answer_is_wrong(runner: LocalRunner, behavior: str, text: str) -> None:
    bad = _one_bad(runner, behavior)
    assert bad.status is MeasureStatus.WRONG_ANSWER
    assert text in bad.error
    assert "max abs error" in bad.error


def test_a_return_code_is_a_failed_run(runner: LocalRunner) -> None:
    bad = _one_bad(runner, "code 7")
    assert bad.status is MeasureStatus.RUNTIME_DEVICE
    assert bad.error.startswith("ArtifactError: kernel kernel failed with code 7")


def test_code_that_cannot_be_loaded_is_a_compile_error(runner: LocalRunner) -> None:
    damaged = Measurement(artifact=replace(artifact("good"), object_code=b"no code"))
    missing, bad = _built("unknown symbol"), runner.run(task(), [damaged, _built("good")])
    assert [result.status for result in bad] == [MeasureStatus.COMPILE_DEVICE, OK]
    assert "cannot be loaded" in bad[0].error
    assert runner.run(task(), [missing])[0].status is MeasureStatus.COMPILE_DEVICE
    other = runner.run(task(), [_built("good", 100)])
    assert other[0].status is MeasureStatus.COMPILE_DEVICE


def test_many_losses_in_one_batch_are_each_attributed(runner: LocalRunner) -> None:
    results = _run(runner, "crash", "good", "wrong", "crash", "crash", "good")
    crashed, wrong = MeasureStatus.RUNTIME_DEVICE, MeasureStatus.WRONG_ANSWER
    assert [result.status for result in results] == [crashed, OK, wrong, crashed, crashed, OK]


def test_a_clearly_slower_candidate_is_not_repeated(runner: LocalRunner) -> None:
    fast, slow, again = _run(runner, "good", "slow", "good")
    assert len(fast.costs) == len(again.costs) == OPTIONS.repeat
    assert len(slow.costs) == 1
    assert (fast.censored, slow.censored) == (False, True)
    assert slow.costs[0] > min(fast.costs)
    assert slow.status is OK


def test_the_best_of_earlier_rounds_counts_as_well(runner: LocalRunner) -> None:
    (alone,) = runner.run(task(), [_built("slow")])
    assert len(alone.costs) == OPTIONS.repeat
    (timed,) = runner.run(task(), [_built("slow")], best_seconds=1e-7)
    assert len(timed.costs) == 1
    (first,) = runner.run(task(), [_built("slow")], best_seconds=math.inf)
    assert len(first.costs) == OPTIONS.repeat


def test_without_checking_any_answer_is_timed() -> None:
    with _runner(replace(OPTIONS, check=False)) as runner:
        assert [result.status for result in _run(runner, "wrong", "nothing")] == [OK, OK]


def test_a_reference_that_fails_fails_all_candidates_with_the_reason() -> None:
    with _runner(reference="crashing_reference") as runner:
        results = _run(runner, "good", "good")
    assert [result.status for result in results] == [MeasureStatus.RUNTIME_DEVICE] * 2
    assert results[0].error.startswith("double: its default kernel, the reference, fails: WorkerLostError")
    assert "SIGSEGV" in results[0].error


def test_a_worker_that_cannot_start_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with _runner() as runner, pytest.raises(MeasureError, match="cannot start"):
        _run(runner, "good")


def test_constants_are_packed_the_way_the_kernel_wants() -> None:
    run_worker.prepare("packing", artifact("good"), TaskSetup(), OPTIONS)
    buffers = run_worker._tasks.pop("packing")
    kernel = artifact("packed")
    for wanted in (kernel, kernel, artifact("good")):
        buffers.poison_outputs()
        buffers.bind(wanted, threads=1)()
        a = buffers.arrays[0].array
        packing = wanted.args[0].packing
        assert np.array_equal(buffers.outputs[0], 2 * (packing.pack(a) if packing else a))


def test_inputs_depend_on_seed_and_task_only() -> None:
    specs = artifact("good").args

    def inputs(seed: int, key: str) -> np.ndarray:
        return TaskBuffers.filled(specs, seed, key, TaskSetup()).arrays[0].array

    assert np.array_equal(inputs(1, "conv"), inputs(1, "conv"))
    assert not np.array_equal(inputs(1, "conv"), inputs(2, "conv"))
    assert not np.array_equal(inputs(1, "conv"), inputs(1, "dense"))
    assert np.abs(inputs(1, "conv")).max() <= 1.0


@pytest.mark.parametrize("options", [{"rotate_bytes": 1 << 20}, {"enable_cpu_cache_flush": True}])
def test_cold_arguments_cost_no_answer(options: dict[str, int]) -> None:
    """A kernel that finds its constants elsewhere with every call is checked with its own."""
    with _runner(replace(OPTIONS, **options)) as runner:  # type: ignore[arg-type]
        candidates = [_built("good"), _built("wrong later"), _built("packed")]
        good, wrong, packed = runner.run(task(constant=True), candidates)
    assert good.status is OK
    assert len(good.costs) == OPTIONS.repeat
    assert wrong.status is MeasureStatus.WRONG_ANSWER
    assert "later not" in wrong.error
    assert packed.status is MeasureStatus.WRONG_ANSWER  # it takes the numbers in another order, as it should not here


def test_every_call_finds_its_constants_in_another_place() -> None:
    run_worker.prepare("rotating", artifact("good"), TaskSetup(constants=(0,)), OPTIONS)
    buffers = run_worker._tasks.pop("rotating")
    places = buffers.addresses_of_constants(10 * ELEMENTS * 4)
    assert len(set(places[0])) == 10
    kernel = buffers.bind(artifact("good"), threads=1)
    call = kernel.rotating(places)
    pool = buffers.pools[0].view("float32")
    pool[...] = np.arange(10, dtype=np.float32)[:, None]
    seen = []
    for _ in range(11):
        call()
        seen.append(float(buffers.outputs[0][0]))
    assert seen == [2.0 * number for number in (*range(10), 0)]
    call.restore()
    kernel()
    assert np.array_equal(buffers.outputs[0], 2 * buffers.arrays[0].array)


def test_other_load_is_recorded() -> None:
    (result,) = _run_options(OPTIONS)
    assert result.contention is not None
    assert 0.0 <= result.contention <= 1.0


def _run_options(options: MeasureOptions) -> list[Measurement]:
    with _runner(options) as runner:
        return _run(runner, "good")


def test_programs_are_compared_in_turn(runner: LocalRunner) -> None:
    builds = [_built("good"), _built("slow"), _built("good")]
    results = runner.compare(task(), builds, passes=3)
    assert results is not None
    fast, slow, again = results
    assert [len(result.costs) for result in results] == [3, 3, 3]
    assert min(slow.costs) > 10 * min(fast.costs)
    assert min(again.costs) < 10 * min(fast.costs)
    assert [result.status for result in runner.run(task(), builds)] == [OK] * 3  # the buffers are as they were


def test_comparison_that_loses_its_worker_fails_no_candidate(runner: LocalRunner) -> None:
    assert runner.compare(task(), [_built("good"), _built("crash")]) is None
    assert _run(runner, "good")[0].status is OK


def test_what_comes_after_a_restart_runs_in_another_process(runner: LocalRunner) -> None:
    _run(runner, "good")
    before = runner._worker.pid
    runner.restart()
    assert _run(runner, "good")[0].status is OK
    assert before is not None
    assert runner._worker.pid not in (None, before)
