"""TVM-compatible `graph_executor`: runs a compiled network from a graph, a library and a device, or from a file.

It loads no part of the compiler itself.
"""

from retune.compiler.runtime.buffers import empty
from retune.compiler.runtime.device import Device, cpu, cuda, device
from retune.compiler.runtime.executor.library import Library
from retune.compiler.runtime.executor.params import (
    load_param_dict,
    load_param_dict_from_file,
    save_param_dict,
    save_param_dict_to_file,
)
from retune.compiler.runtime.timing import BenchmarkResult
from retune.compiler.tvm.graph_module import GraphModule, create, get_device

load_module = Library.load

__all__ = [
    "BenchmarkResult",
    "Device",
    "GraphModule",
    "Library",
    "cpu",
    "create",
    "cuda",
    "device",
    "empty",
    "get_device",
    "load_module",
    "load_param_dict",
    "load_param_dict_from_file",
    "save_param_dict",
    "save_param_dict_to_file",
]
