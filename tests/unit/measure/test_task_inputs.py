"""Inputs that must not be random: a gather reads where its indices say."""

from pathlib import Path

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import OptionError
from retune.compiler.measure import task_inputs
from retune.compiler.measure.builder import LocalBuilder
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import Measurement, MeasureStatus
from retune.compiler.measure.runner import LocalRunner
from retune.compiler.measure.task_inputs import (
    DEFAULT,
    get_task_input_buffer,
    register_task_input_buffer,
    register_task_input_check_func,
    register_task_inputs,
    revision,
    special_inputs,
)
from retune.compiler.runtime.artifact import Array
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.te.tensor import Tensor
from retune.compiler.tvm.auto_scheduler import SearchTask

INDICES = np.array([2_000_000, 0, 1_999_999, 5, 77], np.int32)


@pytest.fixture(autouse=True)
def empty_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETUNE_HOME", str(tmp_path))
    for table in ("_TABLES", "_REVISIONS", "_CHECKS"):
        monkeypatch.setattr(task_inputs, table, {})


def gather(rows: int = 2_000_001) -> ComputeDAG:
    """y[i] = x[index[i]]"""
    x, index = te.placeholder((rows,), name="X"), te.placeholder((5,), "int32", name="Index")
    return ComputeDAG([x, index, te.compute((5,), lambda i: x[index[i]], "Y")])


def task(**inputs: Array) -> SearchTask:
    return SearchTask(compute_dag=gather(), target="llvm", task_inputs=inputs or None, desc="gather")


def measured(one: SearchTask) -> Measurement:
    with LocalBuilder(n_parallel=1) as builder, LocalRunner(MeasureOptions(min_repeat_ms=0.1)) as runner:
        (result,) = runner.run(one, builder.build(one, [default_steps(one.dag)]))
    return result


@pytest.mark.long
def test_a_gather_with_its_indices_is_measured() -> None:
    one = task(Index=INDICES)
    assert one.task_input_names == ("Index",)
    result = measured(one)
    assert result.status is MeasureStatus.OK, result.error


@pytest.mark.long
def test_wild_indices_are_a_failure_of_the_task_with_its_reason() -> None:
    result = measured(task(Index=np.full(5, 1_070_000_000, np.int32)))
    assert result.status is MeasureStatus.RUNTIME_DEVICE
    assert result.error.startswith("gather: its default kernel, the reference, fails: WorkerLostError")
    assert "SIGSEGV" in result.error


@pytest.mark.long
def test_an_array_of_another_shape_or_type_is_the_users_mistake() -> None:
    with pytest.raises(OptionError, match=r"input .*Index is int32\[5\], the array given for it is int64\[5\]"):
        measured(task(Index=INDICES.astype(np.int64)))


def test_a_new_array_takes_the_place_of_the_old_one_in_a_running_worker() -> None:
    one = task(Index=INDICES)
    with LocalBuilder(n_parallel=1) as builder, LocalRunner(MeasureOptions(min_repeat_ms=0.1)) as runner:
        builds = builder.build(one, [default_steps(one.dag)])
        assert runner.run(one, builds)[0].status is MeasureStatus.OK
        register_task_input_buffer(one.workload_key, "Index", np.full(5, 1_070_000_000, np.int32), overwrite=True)
        assert runner.run(one, builds)[0].status is MeasureStatus.RUNTIME_DEVICE


def test_inputs_are_found_by_name_and_number() -> None:
    one = task(Index=INDICES)
    assert list(special_inputs(one)) == [1]
    assert np.array_equal(special_inputs(one)[1], INDICES)
    assert special_inputs(SearchTask(compute_dag=gather(7), target="llvm")) == {}


def test_a_name_that_no_input_has_is_a_mistake() -> None:
    with pytest.raises(OptionError, match=r"gather has no input called Indices.*X, Index"):
        special_inputs(task(Indices=INDICES))


def test_an_array_is_not_replaced_by_accident() -> None:
    one = task(Index=INDICES)
    before = revision(one.workload_key)
    register_task_input_buffer(one.workload_key, "Index", INDICES.copy())
    with pytest.raises(OptionError, match="another array is registered for input Index"):
        register_task_input_buffer(one.workload_key, "Index", INDICES[::-1])
    register_task_input_buffer(one.workload_key, "Index", INDICES[::-1], overwrite=True)
    assert np.array_equal(special_inputs(one)[1], INDICES[::-1])
    assert revision(one.workload_key) > before


def test_a_saved_array_is_found_by_a_later_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = task()
    register_task_inputs(one.workload_key, {"Index": INDICES}, save_to_file=True)
    assert len(list(tmp_path.glob("inputs/*/Index.npy"))) == 1
    monkeypatch.setattr(task_inputs, "_TABLES", {})
    assert np.array_equal(special_inputs(one)[1], INDICES)
    with pytest.raises(OptionError, match="another array is saved in"):
        register_task_input_buffer(one.workload_key, "Index", INDICES + 1, save_to_file=True)
    with pytest.raises(OptionError, match="cannot be that of a file"):
        register_task_input_buffer(one.workload_key, "../Index", INDICES, save_to_file=True)
    (path,) = tmp_path.glob("inputs/*/Index.npy")
    path.write_bytes(b"nothing")
    with pytest.raises(OptionError, match="cannot be read"):
        special_inputs(one)


def test_the_lookup_goes_from_the_table_to_the_file_to_the_default() -> None:
    one = SearchTask(compute_dag=gather(), target="llvm", task_inputs=["Index"])
    with pytest.raises(OptionError, match="no array is registered for input Index"):
        special_inputs(one)
    register_task_input_buffer(DEFAULT, "Index", INDICES)
    assert np.array_equal(get_task_input_buffer(one.workload_key, "Index"), INDICES)
    register_task_input_buffer(one.workload_key, "Index", INDICES + 1)
    assert np.array_equal(special_inputs(one)[1], INDICES + 1)


def test_function_finds_inputs_with_generated_names() -> None:
    @register_task_input_check_func
    def integers(tensors: object) -> dict[Tensor, str]:
        assert isinstance(tensors, tuple)
        return {tensor: "indices" for tensor in tensors if tensor.dtype == "int32"}

    register_task_input_buffer(DEFAULT, "indices", INDICES)
    assert np.array_equal(special_inputs(task())[1], INDICES)
    with pytest.raises(OptionError, match="integers is registered already"):
        register_task_input_check_func("integers", integers)
    register_task_input_check_func("integers", lambda tensors: {tensors[2]: "indices"}, override=True)
    with pytest.raises(OptionError, match="Y, which is to be filled with indices, is no input of gather"):
        special_inputs(task())
