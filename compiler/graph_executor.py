"""In: a graph, a library and a device, or the file of a compiled network. Out: something that runs it.

Always: names only, the work is done in `retune.compiler.executor`; nothing of the compiler itself is imported.
"""

from retune.compiler.executor.graph_module import GraphModule, create, get_device
from retune.compiler.executor.library import Library
from retune.compiler.executor.params import (
    load_param_dict,
    load_param_dict_from_file,
    save_param_dict,
    save_param_dict_to_file,
)
from retune.compiler.runtime.buffers import empty
from retune.compiler.runtime.device import Device, cpu, cuda, device
from retune.compiler.runtime.timing import BenchmarkResult

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
