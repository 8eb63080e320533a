"""A script from its first line to its result, on this machine."""

import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest

from retune.compiler import auto_scheduler, te
from retune.compiler.measure.record import MeasureStatus
from retune.compiler.schedule import workload_registry
from retune.compiler.te.tensor import Tensor
from retune.compiler.tvm.auto_scheduler import (
    ComputeDAG,
    LocalBuilder,
    LocalRPCMeasureContext,
    LocalRunner,
    MeasureInput,
    MeasureResult,
    ProgramMeasurer,
    RandomModel,
    RecordToFile,
    SearchTask,
    SketchPolicy,
    TaskScheduler,
    TuningOptions,
    XGBModel,
    deserialize_workload_registry_entry,
    load_records,
    register_workload,
    serialize_workload_registry_entry,
)
from tests.support.tiers import long_except
from tests.support.tvm_scripts import check, matmul

register_workload("matmul", matmul, override=True)


def test_a_matmul_is_tuned_and_is_right(tmp_path: Path) -> None:
    """Races on this machine, then the default runner of scripts in a context, going on from the same log."""
    task, log = SearchTask(func="matmul", args=(64, 64, 64), target="llvm"), tmp_path / "log.json"
    recording = [RecordToFile(log)]
    task.tune(TuningOptions(12, None, 6, measure_callbacks=recording))
    with LocalRPCMeasureContext(min_repeat_ms=1) as context:
        preload = [auto_scheduler.PreloadMeasuredStates(log)]
        policy = SketchPolicy(task, XGBModel(num_warmup_sample=4), init_search_callbacks=preload)
        task.tune(TuningOptions(4, runner=context.runner, measure_callbacks=recording), policy)
    records = list(load_records(log))
    assert len(records) == len({inp.state.steps for inp, _ in records}) == 16
    assert sum(result.error_no is MeasureStatus.OK for _, result in records) >= 14
    check(task, task.apply_best(log))


def gather(rows: int) -> list[Tensor]:
    """y[i] = x[index[i]]"""
    x, index = te.placeholder((rows,), name="X"), te.placeholder((5,), "int32", name="Index")
    return [x, index, te.compute((5,), lambda i: x[index[i]], "Y")]


def test_programs_run_through_a_local_context() -> None:
    register_workload("gather_through_context", gather, override=True)
    indices = np.array([5, 0, 1_999_999, 7, 9], np.int32)
    tasks = [
        SearchTask(func="matmul", args=(128, 128, 128), target="llvm"),
        SearchTask(func="gather_through_context", args=(2_000_000,), target="llvm", task_inputs={"Index": indices}),
    ]
    with LocalRPCMeasureContext() as context, LocalBuilder(n_parallel=1) as builder:
        options = TuningOptions(1, builder=builder, runner=context.runner)
        for task in tasks:
            with ProgramMeasurer.of(options, [task]) as measurer:
                naive = MeasureInput(task, task.compute_dag.get_init_state())
                (result,) = measurer.measure(None, [naive])
            assert (result.error_no, result.error_msg) == (MeasureStatus.OK, "")


def naive(task: SearchTask, flush: bool) -> MeasureResult:
    """The program without steps, measured with the default runner of scripts."""
    runner = LocalRunner(threads=1, min_repeat_ms=1, enable_cpu_cache_flush=flush)
    with LocalBuilder(n_parallel=1) as builder, runner, ProgramMeasurer(builder, runner) as measurer:
        (result,) = measurer.measure(None, [MeasureInput(task, task.compute_dag.get_init_state())])
    return result


def unpickled(data: bytes) -> tuple[MeasureStatus, str]:
    """Measure a pickled task in a process that never registered its workload."""
    result = naive(pickle.loads(data), flush=True)
    return result.error_no, result.error_msg


@pytest.mark.parametrize("flush", long_except([True], [False, True]))
def test_the_default_schedule_runs_for_a_function_and_a_graph(flush: bool) -> None:
    of_function = SearchTask(func="matmul", args=(512, 512, 512), target="llvm")
    of_graph = SearchTask(compute_dag=ComputeDAG(matmul(512, 512, 512)), target="llvm")
    entry = serialize_workload_registry_entry(of_graph.workload_key)
    del workload_registry.WORKLOAD_FUNC_REGISTRY[of_graph.workload_key]
    deserialize_workload_registry_entry(pickle.loads(pickle.dumps(entry)))
    by_key = SearchTask(workload_key=of_graph.workload_key, target="llvm")
    assert str(by_key.compute_dag) == str(of_graph.compute_dag)
    for task in (of_function, by_key):
        result = naive(task, flush)
        assert (result.error_no, result.error_msg) == (MeasureStatus.OK, "")


@pytest.mark.long
def test_a_spawned_process_measures_a_task_that_it_was_sent() -> None:
    task = SearchTask(compute_dag=ComputeDAG(matmul(96, 96, 96)), target="llvm")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(unpickled, (pickle.dumps(task),)) == (MeasureStatus.OK, "")


def searched(log: str) -> int:
    """Tune one task with sketches and the model that knows nothing; how many records there are then."""
    register_workload("matmul", matmul, override=True)
    task = SearchTask(func="matmul", args=(64, 64, 64), target="llvm")
    task.tune(TuningOptions(4, 1, 2, measure_callbacks=[RecordToFile(log)]), SketchPolicy(task, RandomModel()))
    check(task, task.apply_best(log))
    return len(list(load_records(log)))


@pytest.mark.long
def test_a_task_is_tuned_in_a_spawned_process(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(searched, (str(tmp_path / "log.json"),)) >= 2


def scheduled(log: str) -> int:
    """Tune two tasks, in whatever process this is; how many records there are then."""
    register_workload("matmul", matmul, override=True)
    tasks = [SearchTask(func="matmul", args=(size, size, size), target="llvm") for size in (2, 4)]
    scheduler = TaskScheduler(tasks, strategy="round-robin", callbacks=[])
    scheduler.tune(TuningOptions(4, None, 1, measure_callbacks=[RecordToFile(log)]), "sketch.random")
    return sum(result.error_no is MeasureStatus.OK for _, result in load_records(log))


@pytest.mark.long
def test_tasks_are_tuned_in_a_spawned_process(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(scheduled, (str(tmp_path / "log.json"),)) == 4
