"""Registry of workloads at TVM's path; see `retune.compiler.schedule.workload_registry`."""

from retune.compiler.schedule.workload_registry import (
    WORKLOAD_FUNC_REGISTRY,
    deserialize_workload_registry_entry,
    load_workload_func_registry,
    make_workload_key,
    register_workload,
    register_workload_tensors,
    save_workload_func_registry,
    serialize_workload_registry_entry,
    workload_key_to_tensors,
)

__all__ = [
    "WORKLOAD_FUNC_REGISTRY",
    "deserialize_workload_registry_entry",
    "load_workload_func_registry",
    "make_workload_key",
    "register_workload",
    "register_workload_tensors",
    "save_workload_func_registry",
    "serialize_workload_registry_entry",
    "workload_key_to_tensors",
]
