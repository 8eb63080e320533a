"""Builds the kernel of a program: from a search task and transform steps to a kernel artifact.

Pure and deterministic: the same steps make the same object code.
"""

from collections.abc import Sequence

from retune.compiler.codegen.backend import CpuBackend, backend_of
from retune.compiler.core.errors import OptionError, TargetError
from retune.compiler.ir import trace
from retune.compiler.ir.stmt import check_function_name
from retune.compiler.lower.symbolic import Unsupported
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.schedule.python_text import print_python_code_from_state
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import Step, dump_steps
from retune.compiler.schedule.task import SearchTask


def build_kernel(task: SearchTask, steps: Sequence[Step], name: str) -> KernelArtifact:
    """Compile the program that `steps` make of the task's computation into a kernel called `name`.

    Arguments are the inputs and then the outputs of the graph, in its order.
    Raises: ScheduleError when the steps do not fit, LoweringError when they cannot become code or the name is no
    function name, TargetError when there is no code generation for the target.
    """
    check_function_name(name)
    trace.show(trace.STEPS, name, "steps", lambda: _python_text(task, steps))
    return backend_of(task.target).build(task, steps, name)


def _python_text(task: SearchTask, steps: Sequence[Step]) -> str:
    """The steps as Python code; those of blocks, which make no state of the computation, as JSON."""
    if task.symbols:
        return dump_steps(steps)
    return print_python_code_from_state(task.dag, replay(task.dag, steps))


def build_symbolic_kernel(task: SearchTask, steps: Sequence[Step], name: str) -> KernelArtifact | Unsupported:
    """As `build_kernel`, of a task with symbolic extents: one kernel for all values of the symbols.

    A value says why a program needs a kernel for each shape. Raises: as `build_kernel`; TargetError for a GPU.
    """
    check_function_name(name)
    if task.target.kind != "llvm":
        raise TargetError(
            f"target {str(task.target)!r}: symbolic extents are for CPUs; compile a kernel for each shape"
        )
    return CpuBackend().build_symbolic(task, steps, name)


def kernel_source(task: SearchTask, steps: Sequence[Step], stage: str) -> str:
    """A program as text at one stage of compilation: "loops", "llvm" or "asm" for a CPU; "loops", "llvm" or
    "ptx" for a GPU.

    Raises: OptionError for another stage; as `build_kernel`.
    """
    backend = backend_of(task.target)
    if stage not in backend.stages:
        raise OptionError(f"a program for {task.target} has no stage {stage!r}; it has {', '.join(backend.stages)}")
    return backend.print_stage(task, steps, stage)
