"""Makes the executor of a network, with a memory on the CPU and on each GPU that it uses."""

from collections.abc import Mapping, Sequence

from retune.compiler.core.errors import DeviceError, OptionError
from retune.compiler.core.gpu_facts import runs_code
from retune.compiler.core.target import Target
from retune.compiler.runtime.cuda.driver import driver
from retune.compiler.runtime.cuda.driver_interface import GpuDevice
from retune.compiler.runtime.device import Device, cuda, gpus_among
from retune.compiler.runtime.executor.cuda_memory import CudaMemory
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.host_memory import HostFunction
from retune.compiler.runtime.executor.network import CompiledNetwork, check_machine, require_network
from retune.compiler.runtime.loader import Kernel


def executor_of(
    network: CompiledNetwork,
    threads: int = 1,
    devices: Sequence[Device] | None = None,
    kernels: Mapping[str, Kernel] | None = None,
    functions: Mapping[str, HostFunction] | None = None,
) -> GraphExecutor:
    """An executor of a network, on `threads` threads of the CPU. The GPUs among `devices` are devices 1, 2, ... of its
    plan, in order; by default as many GPUs as it needs, from number 0 on. The CPU is always available.

    Only networks with kernels for a GPU use CUDA.
    Raises: like `GraphExecutor`; OptionError for another number of GPUs than the network runs on; DeviceError when it
    needs a GPU and there is none, or another.
    """
    require_network(network)
    need = gpu_count(network)
    if devices is None:
        devices = [cuda(number) for number in range(need)]
    gpus = gpus_among(devices, "networks")
    if len(gpus) != need:
        gpu_names = ", ".join(map(str, gpus)) or "no GPU"
        advice = {0: 'run it on cpu(0), or compile it for "cuda"', 1: "name it, such as cuda(0)"}.get(
            need, "name them, such as cuda(0) and cuda(1)"
        )
        needs = {0: "the CPU alone", 1: "one GPU"}.get(need, f"{need} GPUs")
        raise OptionError(f"network {network.plan.name} was compiled for {needs}, and given is {gpu_names}: {advice}")
    check_machine(network)
    if not gpus:
        return GraphExecutor(network, threads, kernels, functions)
    cuda_driver = driver()
    for gpu in gpus_of(gpus):
        check_gpu(network, gpu)
    # Graphs: a network's small kernels take less time than the host needs to launch them one by one.
    memories = [CudaMemory(cuda_driver, device.device_id, graphs=True) for device in gpus]
    return GraphExecutor(network, threads, kernels, functions, memories)


def gpu_count(network: CompiledNetwork) -> int:
    return max((call.device for call in network.plan.calls), default=0)


def check_gpu(network: CompiledNetwork, here: GpuDevice) -> None:
    """Check that a GPU can run the network's kernels. Raises: DeviceError."""
    for kernel in network.kernels:
        if kernel.device is None:
            continue
        made_for = Target(kernel.target).arch
        if not runs_code(here.arch, made_for, assembled=kernel.device.kind == "cubin"):
            raise DeviceError(
                f"network {network.plan.name} was compiled for {made_for}; the GPU here, {here.name}, is {here.arch}: "
                f'compile it with --target "cuda -arch={here.arch}"'
            )


def gpus_of(devices: Sequence[Device]) -> tuple[GpuDevice, ...]:
    """The driver's description of GPUs. Raises: DeviceError when one is missing, or CUDA cannot be used."""
    known = driver().devices()
    for device in devices:
        if not 0 <= device.device_id < len(known):
            raise DeviceError(f"there is no GPU number {device.device_id}; this machine has {len(known)}")
    return tuple(known[device.device_id] for device in devices)
