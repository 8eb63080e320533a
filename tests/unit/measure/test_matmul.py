"""A matrix product goes from its definition through builder and runner, however its task was made."""

import pickle

import pytest

from retune.compiler import te
from retune.compiler.measure.builder import LocalBuilder
from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.measure.record import Measurement, MeasureStatus
from retune.compiler.schedule.workload_registry import (
    deserialize_workload_registry_entry,
    register_workload_tensors,
    serialize_workload_registry_entry,
)
from retune.compiler.te.tensor import Tensor
from retune.compiler.tvm.auto_scheduler import ComputeDAG, LocalRunner, SearchTask, register_workload


def product(size: int = 512) -> list[Tensor]:
    """c = a @ b"""
    a, b = te.placeholder((size, size), name="A"), te.placeholder((size, size), name="B")
    k = te.reduce_axis(size, "k")
    return [a, b, te.compute((size, size), lambda i, j: te.sum(a[i, k] * b[k, j], k), "C")]


register_workload("measured_product", product, override=True)


def measured(task: SearchTask, flush: bool = False) -> Measurement:
    """The program without a single step, built and run with the defaults that a script gets."""
    with LocalBuilder() as builder, LocalRunner(timeout=300, enable_cpu_cache_flush=flush) as runner:
        (result,) = runner.run(task, builder.build(task, [()]))
    return result


@pytest.mark.parametrize(("size", "flush"), [pytest.param(512, False, marks=pytest.mark.long), (128, True)])
def test_a_task_made_from_a_function_is_measured(size: int, flush: bool) -> None:
    result = measured(SearchTask(func="measured_product", args=(size,), target="llvm"), flush)
    assert (result.status, result.error) == (MeasureStatus.OK, "")
    assert len(result.costs) == 1
    assert 1e-6 < result.costs[0] < 10


@pytest.mark.long
def test_a_task_made_from_a_pickled_graph_whose_workload_is_registered_again_is_measured() -> None:
    tensors = product(128)
    register_workload_tensors("a product", tensors)
    task = SearchTask(compute_dag=ComputeDAG(tensors), workload_key="a product", target="llvm")
    dag = pickle.loads(pickle.dumps(task.compute_dag))
    deserialize_workload_registry_entry(serialize_workload_registry_entry("a product"))
    again = SearchTask(compute_dag=dag, workload_key="a product", target="llvm")
    assert measured(again).status is MeasureStatus.OK


def measured_elsewhere() -> int:
    """The status, in whatever process this is."""
    return int(measured(SearchTask(func="measured_product", args=(64,), target="llvm")).status)


@pytest.mark.long
def test_a_process_that_was_spawned_measures_too() -> None:
    with WorkerProcess() as worker:
        assert worker.call(f"{__name__}:measured_elsewhere", timeout_s=120) == 0
