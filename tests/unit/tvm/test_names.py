"""What a script imports is there, takes the parameters that it is known for, and works."""

# mypy: disable-error-code="comparison-overlap"
# numbers of TVM are compared with members of our enumerations

import inspect
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retune.compiler import auto_scheduler
from retune.compiler.core.errors import OptionError, UnknownWorkloadError, UnregisteredWorkloadError
from retune.compiler.driver.build import build_kernel
from retune.compiler.schedule import workload_registry
from tests.support.tvm_scripts import matmul

NO = inspect.Parameter.empty
"""A parameter without a default."""

STATE_CALLS = {
    "State.bind": ["self", "stage", "iterator", "thread_name"],
    "State.cache_read": ["self", "stage", "scope_name", "reader_stages"],
    "State.cache_write": ["self", "stage", "scope_name"],
    "State.compute_at": ["self", "stage", "target_stage", "target_iter"],
    "State.compute_inline": ["self", "stage"],
    "State.compute_root": ["self", "stage"],
    "State.follow_fused_split": ["self", "stage", "iterator", "src_step_ids", "level", "factor_or_nparts"],
    "State.follow_split": ["self", "stage", "iterator", "src_step_id", "n_split"],
    "State.fuse": ["self", "stage", "iters"],
    "State.parallel": ["self", "stage", "iterator"],
    "State.pragma": ["self", "stage", "iterator", "pragma_type"],
    "State.reorder": ["self", "stage", "order"],
    "State.rfactor": ["self", "stage", "iterator", "factor_iter_id"],
    "State.split": ["self", "stage", "iterator", "lengths", "inner_to_outer"],
    "State.storage_align": ["self", "stage", "iterator", "factor", "offset"],
    "State.unroll": ["self", "stage", "iterator", "max_unroll"],
    "State.vectorize": ["self", "stage", "iterator"],
}  # fmt: skip

PARAMETERS: dict[str, dict[str, object]] = {
    "ComputeDAG": {"compute_or_sche": None},
    "ComputeDAG.apply_steps_from_state": {"self": NO, "state": NO, "layout_rewrite": 0},
    "ComputeDAG.get_init_state": {"self": NO},
    "ComputeDAG.hash_key": {"self": NO},
    "ComputeDAG.infer_bound_from_state": {"self": NO, "state": NO},
    "ComputeDAG.print_python_code_from_state": {"self": NO, "state": NO},
    "ComputeDAG.rewrite_layout_from_state": {"self": NO, "state": NO},
    "LayoutRewriteOption.get_target_default": {"target": NO, "in_relay_integration": False},
    "get_shape_from_rewritten_layout": {"rewritten_layout": NO, "axis_names": NO},
    "RandomModel": {},
    "RandomModel.update": {"self": NO, "inputs": NO, "results": NO},
    "RandomModel.predict": {"self": NO, "search_task": NO, "states": NO},
    "XGBModel": {
        "verbose_eval": 25, "num_warmup_sample": 100, "seed": None, "model_file": None, "adapative_training": False,
    },
    "XGBModel.update": {"self": NO, "inputs": NO, "results": NO},
    "XGBModel.predict": {"self": NO, "task": NO, "states": NO},
    "XGBModel.predict_stages": {"self": NO, "task": NO, "states": NO},
    "XGBModel.update_from_file": {"self": NO, "file_name": NO, "n_lines": None},
    "XGBModel.save": {"self": NO, "file_name": NO},
    "XGBModel.load": {"self": NO, "file_name": NO},
    "DispatchContext.query": {"self": NO, "target": NO, "workload_key": NO, "has_complex_op": NO, "dag": NO},
    "DispatchContext.update": {"self": NO, "target": NO, "workload_key": NO, "state": NO},
    "ApplyHistoryBest": {"records": NO, "n_lines": None},
    "ApplyHistoryBest.load": {"self": NO, "records": NO, "n_lines": None},
    "ApplyHistoryBest.update": {"self": NO, "target": NO, "workload_key": NO, "state": NO},
    "ApplyHistoryBestOrSample": {
        "records": NO, "sample_simple_workloads": False, "cost_model_file": None, "num_measure": -1,
    },
    "MeasureInput": {"task": NO, "state": NO},
    "MeasureInput.serialize": {"self": NO},
    "MeasureResult": {"costs": NO, "error_no": NO, "error_msg": NO, "all_cost": NO, "timestamp": NO},
    "LocalBuilder": {"timeout": 15, "n_parallel": None, "build_func": "default"},
    "LocalRunner": {
        "timeout": 10, "number": 3, "repeat": 1, "min_repeat_ms": 100, "cooldown_interval": 0.0,
        "enable_cpu_cache_flush": False,
    },
    "RPCRunner": {
        "key": NO, "host": NO, "port": NO, "priority": 1, "n_parallel": 1, "timeout": 10, "number": 3, "repeat": 1,
        "min_repeat_ms": 100, "cooldown_interval": 0.0, "enable_cpu_cache_flush": False,
    },
    "LocalRPCMeasureContext": {
        "priority": 1, "n_parallel": 1, "timeout": 10, "number": 3, "repeat": 1, "min_repeat_ms": 0,
        "cooldown_interval": 0.0, "enable_cpu_cache_flush": False,
    },
    "RecordToFile": {"filename": NO},
    "RecordReader": {"filename": NO},
    "RecordReader.read_lines": {"self": NO, "max_lines": None, "skip_lines": 0},
    "load_best_record": {"filename": NO, "workload_key": None, "target": None},
    "load_records": {"filename": NO},
    "save_records": {"filename": NO, "inputs": NO, "results": NO},
    "recover_measure_input": {"inp": NO, "rebuild_state": False},
    "extract_tasks": {
        "mod": NO, "params": NO, "target": NO, "target_host": None, "hardware_params": None,
        "include_simple_tasks": False,
    },
    "remove_index_check": {"tensor": NO},
    "rewrite_compute_body": {"compute_tensor": NO, "new_layout": NO},
    "rewrite_tensor_shape": {},
    "is_auto_scheduler_enabled": {},
    "SearchTask": {
        "func": None, "args": None, "compute_dag": None, "workload_key": None, "target": None, "target_host": None,
        "hardware_params": None, "layout_rewrite_option": None, "task_inputs": None, "task_inputs_overwrite": False,
        "task_inputs_save_to_file": False, "desc": "",
    },
    "SearchTask.tune": {"self": NO, "tuning_options": NO, "search_policy": None, "adaptive_training": False},
    "SearchTask.apply_best": {"self": NO, "log_file": NO, "layout_rewrite_option": None},
    "SearchTask.print_best": {"self": NO, "log_file": NO, "print_mode": "schedule"},
    "TuningOptions": {
        "num_measure_trials": 0, "early_stopping": None, "num_measures_per_round": 64, "verbose": 1,
        "builder": "local", "runner": "local", "measure_callbacks": None,
    },
    "HardwareParams": dict.fromkeys((
        "num_cores", "vector_unit_bytes", "cache_line_bytes", "max_shared_memory_per_block",
        "max_local_memory_per_block", "max_threads_per_block", "max_vthread_extent", "warp_size",
    ), ...),
    "create_task": {"func": NO, "args": NO, "target": NO, "target_host": None, "hardware_params": None},
    "auto_schedule": {"task": NO, "search_policy": None, "tuning_options": auto_scheduler.TuningOptions()},
    "EmptyPolicy": {"task": NO, "init_search_callbacks": None},
    "SketchPolicy": {
        "task": NO, "program_cost_model": ..., "params": None, "seed": None, "verbose": 1,
        "init_search_callbacks": None,
    },
    "SketchPolicy.generate_sketches": {"self": NO, "print_for_debug": False},
    "SketchPolicy.sample_initial_population": {"self": NO},
    "SketchPolicy.evolutionary_search": {"self": NO, "init_populations": NO, "out_size": NO},
    "SketchPolicy.continue_search_one_round": {"self": NO, "num_measure": NO, "measurer": NO},
    "SketchPolicy.search": {
        "self": NO, "num_measure_trials": NO, "early_stopping": NO, "num_measures_per_round": NO, "measurer": NO,
    },
    "PreloadMeasuredStates": {"filename": NO},
    "PreloadCustomSketchRule": {"meet_condition_func": NO, "apply_func": NO, "rule_name": "CustomSketchRule"},
    "TaskScheduler": {
        "tasks": NO, "task_weights": None, "objective_func": None, "strategy": "gradient", "load_model_file": None,
        "load_log_file": None, "alpha": 0.2, "beta": 2, "gamma": 0.5, "backward_window_size": 3, "callbacks": None,
    },
    "TaskScheduler.tune": {"self": NO, "tune_option": NO, "search_policy": "default", "search_policy_params": None},
    "LogEstimatedLatency": {"log_file": "total_latency.tsv"},
    "register_workload": {"func_name": NO, "f": None, "override": False},
    "make_workload_key": {"func": NO, "args": NO},
    "register_task_input_check_func": {"func_name": NO, "f": None, "override": False},
}  # fmt: skip
"""Every class and function of the package with its parameters, in order, and their defaults (`...`: any)."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_name_takes_its_parameters_with_their_defaults(name: str) -> None:
    found = list(inspect.signature(_named(name)).parameters.values())
    wanted = PARAMETERS[name]
    assert [each.name for each in found[: len(wanted)]] == list(wanted)
    for each, default in zip(found, wanted.values(), strict=False):
        assert default is ... or (each.default is NO) == (default is NO), each
        assert default is ... or default is NO or each.default == default, each
    assert all(each.default is not NO or "*" in str(each) for each in found[len(wanted) :]) or not wanted


@pytest.mark.parametrize("name", STATE_CALLS)
def test_a_call_of_a_state_takes_its_parameters(name: str) -> None:
    names = list(inspect.signature(_named(name)).parameters)
    assert names[: len(STATE_CALLS[name])] == STATE_CALLS[name]


def _named(name: str) -> Callable[..., object]:
    found: object = auto_scheduler
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)
    return found


def test_all_names_are_there() -> None:
    assert all(hasattr(auto_scheduler, name) for name in auto_scheduler.__all__)
    assert {"PrintTableInfo", "MeasureErrorNo"} <= set(auto_scheduler.__all__)
    assert auto_scheduler.MeasureErrorNo.NO_ERROR == 0
    assert auto_scheduler.MeasureErrorNo.INSTANTIATION_ERROR == 1
    assert auto_scheduler.MeasureErrorNo.UNKNOWN_ERROR == 8
    assert {name.partition(".")[0] for name in PARAMETERS} <= set(auto_scheduler.__all__)


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    registry = workload_registry.WORKLOAD_FUNC_REGISTRY  # two modules hold it, so its contents are what is exchanged
    before = dict(registry)
    registry.clear()
    yield
    registry.clear()
    registry.update(before)


def test_a_task_is_made_of_a_function_a_key_or_a_graph() -> None:
    auto_scheduler.register_workload(matmul)
    task = auto_scheduler.SearchTask(func=matmul, args=(8, 16, 4), target="llvm")
    assert task.workload_key == '["matmul", 8, 16, 4]'
    again = auto_scheduler.SearchTask(workload_key=task.workload_key, target=auto_scheduler.Target("llvm"))
    assert str(again.compute_dag) == str(task.compute_dag)
    named = auto_scheduler.SearchTask(func="matmul", args=(8, 16, 4), target="llvm", desc="product")
    assert (named.name, named.workload_key) == ("product", task.workload_key)
    graph = auto_scheduler.ComputeDAG(matmul(8, 16, 4))
    assert auto_scheduler.SearchTask(compute_dag=graph, target="llvm").workload_key == graph.workload_key
    assert task.layout is auto_scheduler.LayoutRewriteOption.INSERT_TRANSFORM_STAGE
    assert task.hardware.num_cores >= 1
    assert build_kernel(task, (), "kernel").args[1].packing is None


def test_options_of_a_task_override_defaults() -> None:
    task = auto_scheduler.SearchTask(
        compute_dag=auto_scheduler.ComputeDAG(matmul(4, 4, 4)),
        target="cuda -arch=sm_90",
        target_host="llvm -mtriple=aarch64-linux-gnu",
        hardware_params=auto_scheduler.HardwareParams(-1, 16, warp_size=16),
        layout_rewrite_option=auto_scheduler.LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED,
    )
    assert task.hardware.to_row() == [-1, 16, 64, 227 << 10, 2**31 - 1, 1024, 8, 16]
    assert task.layout is auto_scheduler.LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED
    assert str(task.target_host) == "llvm -mtriple=aarch64-linux-gnu"
    copy = pickle.loads(pickle.dumps(task))
    assert isinstance(copy, auto_scheduler.SearchTask)
    assert (copy.target, copy.target_host, copy.hardware, copy.layout) == (
        task.target,
        task.target_host,
        task.hardware,
        task.layout,
    )
    assert copy.workload_key == task.workload_key


def test_task_without_function_or_key_is_refused() -> None:
    with pytest.raises(OptionError, match="a function with its arguments"):
        auto_scheduler.SearchTask(target="llvm")
    with pytest.raises(OptionError, match="needs a target"):
        auto_scheduler.SearchTask(compute_dag=auto_scheduler.ComputeDAG(matmul(4, 4, 4)))
    with pytest.raises(UnregisteredWorkloadError):
        auto_scheduler.SearchTask(func=matmul, args=(4, 4, 4), target="llvm")
    with pytest.raises(UnknownWorkloadError):
        auto_scheduler.ComputeDAG('["matmul", 4, 4, 4]')
    with pytest.raises(UnregisteredWorkloadError, match="under a string"):
        auto_scheduler.register_workload(5)  # type: ignore[call-overload]


def test_the_registry_by_its_public_names(tmp_path: Path) -> None:
    auto_scheduler.register_workload("product", f=matmul)
    key = auto_scheduler.make_workload_key("product", (4, 4, 4))
    entry = auto_scheduler.serialize_workload_registry_entry(key)
    auto_scheduler.save_workload_func_registry(str(tmp_path / "registry"))
    workload_registry.WORKLOAD_FUNC_REGISTRY.clear()
    auto_scheduler.deserialize_workload_registry_entry(entry)
    assert auto_scheduler.workload_key_to_tensors(key)[2].shape == (4, 4)
    workload_registry.WORKLOAD_FUNC_REGISTRY.clear()
    auto_scheduler.load_workload_func_registry(str(tmp_path / "registry"))
    assert len(auto_scheduler.ComputeDAG(key).tensors) == 3


def test_a_notebook_shows_a_task_as_a_table() -> None:
    auto_scheduler.register_workload(matmul)
    task = auto_scheduler.SearchTask(func=matmul, args=(8, 16, 4), target="llvm", desc="a<b")
    shown = task._repr_html_()
    assert "<b>a&lt;b</b>" in shown
    assert all(f"<td>{tensor.dtype}{list(tensor.shape)}</td>" in shown for tensor in task.compute_dag.tensors)


def test_the_registry_of_workloads_has_the_name_of_tvms() -> None:
    auto_scheduler.register_workload("product", matmul)
    assert {"product": matmul} == auto_scheduler.workload_registry.WORKLOAD_FUNC_REGISTRY
