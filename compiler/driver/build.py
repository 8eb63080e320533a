"""In: a search task and transform steps. Out: a kernel artifact.

Always: pure and deterministic; the same steps make the same object code.
"""

from collections.abc import Sequence

from compiler.codegen.cpu import assembly, compile_module, describe, function_attributes
from compiler.codegen.kernel import KernelText, write_kernel
from compiler.ir.stmt import LoopFunction
from compiler.lower.pipeline import lower
from compiler.runtime.artifact import ArgSpec, KernelArtifact
from compiler.schedule.state import replay
from compiler.schedule.steps import Step
from compiler.schedule.task import SearchTask


def build_kernel(task: SearchTask, steps: Sequence[Step], name: str) -> KernelArtifact:
    """Compile the program that `steps` make of the task's computation into a kernel called `name`.

    Arguments are the inputs and then the outputs of the graph, in its order.
    Raises: ScheduleError when the steps do not fit, LoweringError when they cannot become code, TargetError when there
    is no code generation for the target.
    """
    describe(task.target)
    function = lower(replay(task.dag, steps), name, task.hardware, task.layout)
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
    function = lower(replay(task.dag, steps), "kernel", task.hardware, task.layout)
    if form == "loops":
        return str(function)
    text = _text(task, function).llvm
    return text if form == "llvm" else assembly(text, task.target)


def _text(task: SearchTask, function: LoopFunction) -> KernelText:
    width = task.hardware.vector_unit_bytes
    attributes = function_attributes(width)
    return write_kernel(function, width, task.hardware.stack_bytes, attributes)
