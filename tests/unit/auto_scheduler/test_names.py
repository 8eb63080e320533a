"""What a script imports is there, takes the parameters that it is known for, and works."""

import inspect
import pickle
from pathlib import Path

import pytest

from compiler import auto_scheduler, te
from compiler.driver.build import build_kernel
from compiler.errors import OptionError, UnknownWorkloadError, UnregisteredWorkloadError
from compiler.schedule import workload_registry
from compiler.te.tensor import Tensor

PARAMETERS = {
    "ComputeDAG": ["compute"],
    "ComputeDAG.apply_steps_from_state": ["self", "state", "layout_rewrite"],
    "ComputeDAG.get_init_state": ["self"],
    "ComputeDAG.hash_key": ["self"],
    "ComputeDAG.infer_bound_from_state": ["self", "state"],
    "ComputeDAG.print_python_code_from_state": ["self", "state"],
    "ComputeDAG.rewrite_layout_from_state": ["self", "state"],
    "LayoutRewriteOption.get_target_default": ["target", "in_relay_integration"],
    "get_shape_from_rewritten_layout": ["rewritten_layout", "axis_names"],
    "remove_index_check": ["tensor"],
    "rewrite_compute_body": ["compute_tensor", "new_layout"],
    "register_workload": ["func_name", "f", "override"],
    "make_workload_key": ["func", "args"],
    "SearchTask": [
        "func", "args", "compute_dag", "workload_key", "target", "target_host", "hardware_params",
        "layout_rewrite_option",
    ],
    "HardwareParams": [
        "num_cores", "vector_unit_bytes", "cache_line_bytes", "max_shared_memory_per_block",
        "max_local_memory_per_block", "max_threads_per_block", "max_vthread_extent", "warp_size",
    ],
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


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_name_takes_its_parameters(name: str) -> None:
    found: object = auto_scheduler
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)
    names = list(inspect.signature(found).parameters)
    assert names[: len(PARAMETERS[name])] == PARAMETERS[name]


def test_all_names_are_there() -> None:
    assert all(hasattr(auto_scheduler, name) for name in auto_scheduler.__all__)
    assert {name.partition(".")[0] for name in PARAMETERS} <= set(auto_scheduler.__all__)


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_registry, "_REGISTRY", {})


def matmul(n: int, m: int, depth: int) -> list[Tensor]:
    a, b = te.placeholder((n, depth), name="A"), te.placeholder((depth, m), name="B")
    k = te.reduce_axis(depth, "k")
    attrs = {"layout_free_placeholders": (b,)}
    return [a, b, te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], k), "C", attrs)]


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


def test_options_of_a_task_win_over_what_is_usual() -> None:
    task = auto_scheduler.SearchTask(
        compute_dag=auto_scheduler.ComputeDAG(matmul(4, 4, 4)),
        target="cuda -arch=sm_90",
        target_host="llvm -mtriple=aarch64-linux-gnu",
        hardware_params=auto_scheduler.HardwareParams(-1, 16, warp_size=16),
        layout_rewrite_option=auto_scheduler.LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED,
    )
    assert task.hardware.to_row() == [-1, 16, 64, 49152, 2**31 - 1, 1024, 8, 16]
    assert task.layout is auto_scheduler.LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED
    assert str(task.target_host) == "llvm -mtriple=aarch64-linux-gnu"
    copy = pickle.loads(pickle.dumps(task))
    assert isinstance(copy, auto_scheduler.SearchTask)
    assert (copy.target, copy.target_host, copy.hardware, copy.layout) == (
        task.target, task.target_host, task.hardware, task.layout,
    )  # fmt: skip
    assert copy.workload_key == task.workload_key


def test_a_task_that_says_too_little_is_refused() -> None:
    with pytest.raises(OptionError, match="a function with its arguments"):
        auto_scheduler.SearchTask(target="llvm")
    with pytest.raises(OptionError, match="needs a target"):
        auto_scheduler.SearchTask(compute_dag=auto_scheduler.ComputeDAG(matmul(4, 4, 4)))
    with pytest.raises(UnregisteredWorkloadError):
        auto_scheduler.SearchTask(func=matmul, args=(4, 4, 4), target="llvm")
    with pytest.raises(UnknownWorkloadError):
        auto_scheduler.ComputeDAG('["matmul", 4, 4, 4]')
    with pytest.raises(UnregisteredWorkloadError, match="under a text"):
        auto_scheduler.register_workload(5)  # type: ignore[call-overload]


def test_the_registry_by_its_public_names(tmp_path: Path) -> None:
    auto_scheduler.register_workload("product", f=matmul)
    key = auto_scheduler.make_workload_key("product", (4, 4, 4))
    entry = auto_scheduler.serialize_workload_registry_entry(key)
    auto_scheduler.save_workload_func_registry(str(tmp_path / "registry"))
    workload_registry._REGISTRY.clear()
    auto_scheduler.deserialize_workload_registry_entry(entry)
    assert auto_scheduler.workload_key_to_tensors(key)[2].shape == (4, 4)
    workload_registry._REGISTRY.clear()
    auto_scheduler.load_workload_func_registry(str(tmp_path / "registry"))
    assert len(auto_scheduler.ComputeDAG(key).tensors) == 3
