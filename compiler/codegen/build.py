"""Builds the kernel of a program: a search task and transform steps go in, a kernel artifact comes out.

Pure and deterministic: the same steps make the same object code.
"""

from collections.abc import Sequence

from retune.compiler.codegen.cpu import assembly, compile_module, describe, function_attributes
from retune.compiler.codegen.cuda_text import cuda_text
from retune.compiler.codegen.device_build import build_device_kernel
from retune.compiler.codegen.dot_instructions import dots_of
from retune.compiler.codegen.kernel import KernelText, write_kernel
from retune.compiler.codegen.lookups import LOOKUP_BYTES, has_lookups
from retune.compiler.codegen.nvptx import ptx, write_device
from retune.compiler.errors import LoweringError, refusing_depth
from retune.compiler.ir.stmt import LoopFunction, check_function_name
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.lower.pipeline import lower
from retune.compiler.runtime.artifact import ArgSpec, KernelArtifact
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask


def build_kernel(task: SearchTask, steps: Sequence[Step], name: str) -> KernelArtifact:
    """Compile the program that `steps` make of the task's computation into a kernel called `name`.

    Arguments are the inputs and then the outputs of the graph, in its order.
    Raises: ScheduleError when the steps do not fit, LoweringError when they cannot become code or the name is none of a
    function, TargetError when there is no code generation for the target.
    """
    check_function_name(name)
    if task.target.is_gpu:
        return build_device_kernel(task, steps, name)
    describe(task.target)
    with refusing_depth(name, LoweringError):
        function = lower(replay(task.dag, steps), name, task.hardware, task.layout, dots=dots_of(task))
        text = _text(task, function)
    packings = dict(function.packings)
    tensors = (*task.dag.inputs, *task.dag.outputs)
    args = []
    for position, (param, tensor) in enumerate(zip(function.params, tensors, strict=True)):
        is_output = position >= len(task.dag.inputs)
        args.append(ArgSpec(param.name, tensor.shape, tensor.dtype, is_output, packings.get(param.name)))
    code = compile_module(text.llvm, task.target)
    return KernelArtifact(name, code, tuple(args), text.workspace_bytes, str(task.target), text.calls)


def kernel_source(task: SearchTask, steps: Sequence[Step], form: str) -> str:
    """The program as text for people: `form` is "loops", "llvm" or "asm"."""
    function = lower(replay(task.dag, steps), "kernel", task.hardware, task.layout, dots=dots_of(task))
    if form == "loops":
        return str(function)
    text = _text(task, function).llvm
    return text if form == "llvm" else assembly(text, task.target)


def device_source(task: SearchTask, steps: Sequence[Step], form: str) -> str:
    """The program of a task for a GPU as text for people: `form` is "loops", "cuda" (CUDA C), "llvm" or "ptx".

    Raises: ScheduleError, LoweringError, TargetError.
    """
    function = lower_for_gpu(replay(task.dag, steps), "kernel", task.hardware)
    if form == "ptx":
        return ptx(function, task.target)
    return str(function) if form == "loops" else cuda_text(function) if form == "cuda" else write_device(function)


def _text(task: SearchTask, function: LoopFunction) -> KernelText:
    width = task.hardware.vector_unit_bytes
    attributes = function_attributes(width)
    lookups = width >= LOOKUP_BYTES and has_lookups(task.target)
    return write_kernel(function, width, task.hardware.stack_bytes, attributes, dots_of(task), lookups)
