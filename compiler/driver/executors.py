"""In: a compiled network. Out: what runs it, on the processor or also on the GPU of this machine.

Always: CUDA is asked for only by a network that has kernels for a GPU.
"""

from compiler.executor.graph_executor import GraphExecutor
from compiler.executor.heterogeneous import HeterogeneousExecutor
from compiler.executor.network import CompiledNetwork
from compiler.executor.stores import CudaStore, HostStore
from compiler.runtime.cuda import driver


def executor_of(network: CompiledNetwork, threads: int) -> GraphExecutor | HeterogeneousExecutor:
    """An executor of a network, on so many threads of the processor and on GPU number 0.

    Raises: ArtifactError when the network is inconsistent or made for another machine; DeviceError when it needs a GPU
    and there is none.
    """
    if not any(call.device for call in network.plan.calls):
        return GraphExecutor(network, threads)
    return HeterogeneousExecutor(network, [HostStore(threads), CudaStore(driver())], replay=True)
