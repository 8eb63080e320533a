"""Compiles a program of a search task to a kernel artifact for a GPU.

Building is pure and deterministic. The code comes from NVIDIA's assembler if it is installed and knows the target's
architecture; otherwise it is PTX, which the driver assembles.
"""

from collections.abc import Sequence

from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.codegen.nvidia.ptxas import assemble_roomy, assembles
from retune.compiler.core.errors import LoweringError, refuse_depth
from retune.compiler.ir import trace
from retune.compiler.ir.kernel import DeviceFunction
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.runtime.artifact import ArgSpec, DeviceCode, KernelArtifact, KernelLaunch
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask

# The alignment that cudaMalloc guarantees, so that buffers in one workspace are aligned as separate buffers.
_ALIGNMENT = 256
"""Bytes that divide the start of every temporary buffer."""


def build_device_kernel(task: SearchTask, steps: Sequence[Step], name: str) -> KernelArtifact:
    """Compile the program that `steps` make of the task's computation into kernels whose names begin with `name`.

    Raises: ScheduleError, LoweringError, TargetError.
    """
    with refuse_depth(name, LoweringError):
        function = lower_for_gpu(replay(task.dag, steps), name, task.hardware)
        text = ptx(function, task.target)
    trace.show(trace.CODE, name, "PTX", lambda: text)
    code, kind, source = text.encode(), "ptx", ""
    resources: dict[str, tuple[int, int]] = {}
    if task.target.arch and assembles(task.target.arch):
        assembled = assemble_roomy(text, task.target.arch)
        code, kind, source = assembled.code, "cubin", text
        resources = {kernel.name: (kernel.registers, kernel.spilled_bytes) for kernel in assembled.kernels}
    launches = tuple(
        KernelLaunch(kernel.name, kernel.grid, kernel.block, *resources.get(kernel.name, (0, 0)), kernel.dynamic_shared)
        for kernel in function.kernels
    )
    starts, nbytes = _workspace(function)
    tensors = (*task.dag.inputs, *task.dag.outputs)
    args = tuple(
        ArgSpec(param.name, tensor.shape, tensor.dtype, index >= len(task.dag.inputs))
        for index, (param, tensor) in enumerate(zip(function.params, tensors, strict=True))
    )
    device = DeviceCode(kind, launches, starts, source)
    return KernelArtifact(name, code, args, nbytes, str(task.target), device=device)


def _workspace(function: DeviceFunction) -> tuple[tuple[int, ...], int]:
    """The start of each temporary buffer, and the bytes of all."""
    starts, end = [], 0
    for buffer in function.workspace:
        starts.append(end)
        end += buffer.nbytes + -buffer.nbytes % _ALIGNMENT
    return tuple(starts), end
