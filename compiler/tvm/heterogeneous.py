"""Deprecated: `GraphExecutor` runs networks on several devices, given their memories."""

import warnings
from collections.abc import Mapping, Sequence

from retune.compiler.runtime.executor.cuda_memory import CudaMemory
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.host_memory import HostFunction
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.loader import Kernel


def HeterogeneousExecutor(  # noqa: N802
    network: CompiledNetwork,
    stores: Sequence[CudaMemory],
    threads: int = 1,
    kernels: Mapping[str, Kernel] | None = None,
    functions: Mapping[str, HostFunction] | None = None,
    *,
    replay: bool = False,
) -> GraphExecutor:
    """`GraphExecutor(network, threads, memories=stores)`; `replay` is `CudaMemory(..., graphs=True)`."""
    text = "HeterogeneousExecutor is deprecated; use GraphExecutor(network, threads, memories=[CudaMemory(...)])"
    warnings.warn(text, DeprecationWarning, stacklevel=2)
    for memory in stores:
        memory.graphs = replay
    return GraphExecutor(network, threads, kernels, functions, stores)
