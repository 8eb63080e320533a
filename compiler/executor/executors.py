"""In: a compiled network. Out: what runs it, on the processor or also on the GPU of this machine.

Always: CUDA is asked for only by a network that has kernels for a GPU.
"""

from compiler.errors import DeviceError
from compiler.executor.graph_executor import GraphExecutor
from compiler.executor.heterogeneous import HeterogeneousExecutor
from compiler.executor.network import CompiledNetwork
from compiler.executor.stores import CudaStore, HostStore
from compiler.gpu_facts import runs_code
from compiler.runtime.cuda import driver
from compiler.runtime.cuda_driver import GpuDevice
from compiler.target import Target


def uses_gpu(network: CompiledNetwork) -> bool:
    """Whether some of its kernels are for a GPU."""
    return any(call.device for call in network.plan.calls)


def executor_of(network: CompiledNetwork, threads: int) -> GraphExecutor | HeterogeneousExecutor:
    """An executor of a network, on so many threads of the processor and on GPU number 0.

    Raises: ArtifactError when the network is inconsistent or made for another machine; DeviceError when it needs a GPU
    and there is none, or another one; OptionError when `threads` is none that can be started.
    """
    if not uses_gpu(network):
        return GraphExecutor(network, threads)
    host = HostStore(threads)
    cuda = driver()
    check_gpu(network, cuda.devices()[0])
    return HeterogeneousExecutor(network, [host, CudaStore(cuda)], replay=True)


def check_gpu(network: CompiledNetwork, here: GpuDevice) -> None:
    """See that a GPU can run the network's kernels. Raises: DeviceError."""
    for kernel in network.kernels:
        if kernel.device is None:
            continue
        made_for = Target(kernel.target).arch
        if not runs_code(here.arch, made_for, assembled=kernel.device.kind == "cubin"):
            raise DeviceError(
                f"network {network.plan.name} was compiled for {made_for}; the GPU here, {here.name}, is {here.arch}: "
                f'compile it with --target "cuda -arch={here.arch}"'
            )
