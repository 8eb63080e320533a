"""In: a concrete state whose loops are bound to blocks and threads. Out: the kernels that code is generated from.

Always: what is returned keeps the limits of the GPU; the passes are one tuple, in order.
"""

from retune.compiler.errors import LoweringError
from retune.compiler.ir.kernel import DeviceFunction, Kernel
from retune.compiler.ir.stmt import LoopFunction, check_function_name
from retune.compiler.ir.verify import verify
from retune.compiler.lower.gpu.async_copies import AsyncCopies
from retune.compiler.lower.gpu.barriers import insert_barriers
from retune.compiler.lower.gpu.bind_threads import bind_threads
from retune.compiler.lower.gpu.build_kernels import build_kernels
from retune.compiler.lower.gpu.double_buffer_registers import DoubleBufferRegisters
from retune.compiler.lower.gpu.fetch_loops import fetch_loops
from retune.compiler.lower.gpu.limits import check_limits, check_virtual_threads
from retune.compiler.lower.gpu.pipelines import Pipelines
from retune.compiler.lower.gpu.register_buffers import RegisterBuffers
from retune.compiler.lower.gpu.sum_loops import SumLoops
from retune.compiler.lower.gpu.tensor_cores import TensorBuilder
from retune.compiler.lower.gpu.virtual_threads import VirtualThreads
from retune.compiler.lower.passes import LegalizeLoops, LoopPass, SimplifyIndices
from retune.compiler.schedule.state import State
from retune.compiler.target import HardwareParams

PASSES: tuple[LoopPass, ...] = (
    SimplifyIndices(),
    VirtualThreads(),
    SimplifyIndices(),
    AsyncCopies(),
    Pipelines(),
    DoubleBufferRegisters(),
    LegalizeLoops(),
    RegisterBuffers(),
    SumLoops(),
)
"""What is done while blocks and threads are still loops."""


def lower_for_gpu(state: State, name: str, hardware: HardwareParams, *, check: bool = False) -> DeviceFunction:
    """The kernels of a concrete state, ready for code generation or for `retune.compiler.simt`.

    `check` verifies every kernel after every pass.
    Raises: ScheduleError, LoweringError.
    """
    check_function_name(name)
    if hardware.max_threads_per_block < 1:
        raise LoweringError(f"{name}: the hardware parameters are those of a processor; name a GPU, such as cuda")
    kernels = tuple(_lowered(built, hardware, check) for built in build_kernels(state, name, TensorBuilder))
    some = kernels[0].body
    return DeviceFunction(name, some.params, some.workspace, some.outputs, kernels)


def _lowered(function: LoopFunction, hardware: HardwareParams, check: bool) -> Kernel:
    if check:
        verify(function, "build-kernels")
    check_virtual_threads(function, hardware)
    for loop_pass in PASSES:
        function = loop_pass.apply(function)
        if check:
            verify(function, loop_pass.name)
    kernel = bind_threads(function)
    check_limits(kernel, hardware)
    kernel = fetch_loops(insert_barriers(kernel))
    if check:
        verify(kernel.body, "fetch-loops", kernel.ranges)
    return kernel
