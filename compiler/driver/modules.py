"""In: functions of tensors, or tasks. Out: a module of compiled functions that whoever has the TVM FFI can call.

Always: as `retune.compiler.driver.build`, pure and deterministic; what is not given steps runs untuned.
"""

from collections.abc import Mapping, Sequence

from retune.compiler.codegen.build import build_kernel
from retune.compiler.codegen.ffi_entry import entry_code
from retune.compiler.driver.build import Program
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.errors import DefinitionError, LoweringError
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.module import ENTRY, Module
from retune.compiler.runtime.module_file import CompiledFunction
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default import default_steps
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.target import Target
from retune.compiler.te.checks import checked_name
from retune.compiler.te.prim_func import PrimFunc, create_prim_func
from retune.compiler.te.tensor import Tensor

Buildable = PrimFunc | SearchTask | ComputeDAG | Sequence[Tensor]
Steps = Sequence[Step] | Program


def build(
    what: Buildable | Mapping[str, Buildable],
    target: str | Target | None = None,
    name: str | None = None,
    steps: Steps | Mapping[str, Steps] | None = None,
) -> Module:
    """A module with one function, or with one for each name of a mapping.

    A function is made of a `te.create_prim_func`, of tensors that are its arguments in order, or of a task or graph,
    whose inputs come first. `target` is this machine by default, or the task's; `steps` are those of a program that was
    found for the function (or a state), or a mapping of them by name. One function is called `name`, "main" by default.
    Raises: DefinitionError when there is nothing to build, and as `build_kernel`.
    """
    chosen = target if isinstance(target, Target | None) else Target(target)
    if name is not None:
        checked_name("a function", name)
    if isinstance(what, Mapping):
        if name is not None or not isinstance(steps, Mapping | None):
            raise DefinitionError("the functions of a mapping have their names there; give their steps by name too")
        functions, by_name = dict(what), dict(steps or {})
    else:
        title = name or (what.name if isinstance(what, PrimFunc) else ENTRY)
        functions = {title: what}
        by_name = dict(steps) if isinstance(steps, Mapping) else {} if steps is None else {title: steps}
    if not functions:
        raise DefinitionError("there is nothing to build: the mapping has no functions")
    if unknown := sorted(map(str, set(by_name) - set(functions))):
        raise DefinitionError(f"steps are given for {', '.join(unknown)}; the functions are {', '.join(functions)}")
    return Module([_function(title, each, chosen, by_name.get(title)) for title, each in functions.items()])


def as_function(
    name: str, kernel: KernelArtifact, target: Target, order: Sequence[int] | None = None
) -> CompiledFunction:
    """A kernel as a function of a module; `order` as in `entry_code`."""
    return CompiledFunction(name, kernel, entry_code(kernel, name, target, order))


def _function(name: str, what: Buildable, target: Target | None, steps: Steps | None) -> CompiledFunction:
    task, order = _task(name, what, target)
    if task.target.is_gpu:
        raise LoweringError(
            f"{name}: a module holds functions for processors, not for {task.target}; for a GPU there is "
            "retune.compiler.driver.build.build"
        )
    if steps is None:
        steps = default_steps(task.dag)
    elif not isinstance(steps, Sequence):
        steps = getattr(steps, "steps", None)
    if not isinstance(steps, Sequence) or not all(isinstance(step, Step) for step in steps):
        raise DefinitionError(f"{name}: the steps of a program, or a state, are needed, not {steps!r:.80}")
    # A symbol of its own: a program that loads the module has a `main` too.
    return as_function(name, build_kernel(task, steps, f"retune_{name}"), task.target, order)


def _task(name: str, what: Buildable, target: Target | None) -> tuple[SearchTask, Sequence[int] | None]:
    """The task that a function is built from, and which of the kernel's arguments the function takes at each place."""
    if isinstance(what, SearchTask):
        return what if target is None else SearchTask(name, what.dag, target, hardware_of(target, 1)), None
    chosen = target or Target.host()
    if isinstance(what, ComputeDAG):
        return SearchTask(name, what, chosen, hardware_of(chosen, 1)), None
    function = what if isinstance(what, PrimFunc) else create_prim_func(what, name)
    dag = ComputeDAG(function.args)
    task = SearchTask(name, dag, chosen, hardware_of(chosen, 1))
    places = (*dag.inputs, *dag.outputs)
    return task, [places.index(tensor) for tensor in function.args]
