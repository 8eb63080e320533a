"""In: tensor expressions and a target. Out: what the auto-scheduler offers to a script.

Always: names only; the work is done below.
"""

from compiler.auto_scheduler.compute_dag import ComputeDAG
from compiler.auto_scheduler.loop_state import State
from compiler.auto_scheduler.search_task import SearchTask
from compiler.measure.builder import LocalBuilder
from compiler.measure.runner import LocalRunner
from compiler.measure.task_inputs import register_task_input_check_func
from compiler.schedule.layout import LayoutRewriteOption, get_shape_from_rewritten_layout
from compiler.schedule.relaid_weights import remove_index_check, rewrite_compute_body, rewrite_tensor_shape
from compiler.schedule.workload_registry import (
    deserialize_workload_registry_entry,
    load_workload_func_registry,
    make_workload_key,
    register_workload,
    register_workload_tensors,
    save_workload_func_registry,
    serialize_workload_registry_entry,
    workload_key_to_tensors,
)
from compiler.target import HardwareParams, Target

__all__ = [
    "ComputeDAG",
    "HardwareParams",
    "LayoutRewriteOption",
    "LocalBuilder",
    "LocalRunner",
    "SearchTask",
    "State",
    "Target",
    "deserialize_workload_registry_entry",
    "get_shape_from_rewritten_layout",
    "load_workload_func_registry",
    "make_workload_key",
    "register_task_input_check_func",
    "register_workload",
    "register_workload_tensors",
    "remove_index_check",
    "rewrite_compute_body",
    "rewrite_tensor_shape",
    "save_workload_func_registry",
    "serialize_workload_registry_entry",
    "workload_key_to_tensors",
]
