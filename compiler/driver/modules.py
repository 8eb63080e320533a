"""Builds modules of compiled functions, which everything that speaks the TVM FFI can call.

Building is pure and deterministic. A function without steps gets the default schedule. Inputs of free layout are read
as they are, so that callers need not pack them; a task says itself what is done about them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from retune.compiler.codegen.abi.ffi_entry import entry_code
from retune.compiler.codegen.backend import backend_of, default_steps_of
from retune.compiler.codegen.build import build_kernel
from retune.compiler.core.errors import DefinitionError, LoweringError
from retune.compiler.core.target import Target
from retune.compiler.driver.build import Program
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.ffi.module import ENTRY, Module
from retune.compiler.runtime.ffi.module_file import CompiledFunction
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.checks import checked_name
from retune.compiler.te.prim_func import PrimFunc, create_prim_func
from retune.compiler.te.tensor import Tensor

Buildable = PrimFunc | SearchTask | ComputeDAG | Sequence[Tensor]
Steps = Sequence[Step] | Program


def build(
    what: Buildable | Mapping[str, Buildable] | Program,
    args: Sequence[Tensor] | str | Target | None = None,
    target: str | Target | None = None,
    name: str | None = None,
    steps: Steps | Mapping[str, Steps] | None = None,
) -> Module:
    """A module with one function, or a function for each name of a mapping.

    `build(schedule, args, target)`, in TVM's order, takes what `apply_best` gives; anything else that can be built
    brings its own arguments, and its target may come second: `build(what, target)`.

    A function is made of a `te.create_prim_func`, of tensors that are its arguments in order, or of a task or graph,
    whose inputs come first. `target` is this machine by default, or the task's; `steps` are those of a program that was
    found for the function (or a state), or a mapping of them by name. One function is called `name`, "main" by default.
    Raises: DefinitionError when there is nothing to build, and as `build_kernel`.
    """
    if _are_tensors(args):
        if steps is not None:
            raise DefinitionError("a schedule has its steps: give either tensors as `args`, or `steps`")
        return _build_any(args, target, name, what)
    if args is None:
        return _build_any(what, target, name, steps)
    if target is not None:
        raise DefinitionError(
            f"`args` are the tensors of a schedule, not {args!r:.80}; name the others: target=, name="
        )
    return _build_any(what, args, name, steps)


def lower(
    what: Buildable | Program,
    args: Sequence[Tensor] | None = None,
    name: str = ENTRY,
    target: str | Target | None = None,
) -> str:
    """The loops of a program as text: `lower(schedule, args)`, or the default schedule of anything that can be built.

    The first line has the arguments in the order of `args`. `target` is this machine by default, or the task's.
    Raises: DefinitionError when there is nothing to lower, ScheduleError, LoweringError, TargetError.
    """
    if args is not None and not _are_tensors(args):
        raise DefinitionError(f"`args` are the tensors of a schedule, not {args!r:.80}")
    chosen = target if isinstance(target, Target | None) else Target(target)
    task, order = _task(checked_name("a function", name), what if args is None else args, chosen)  # type: ignore[arg-type]
    steps = default_steps_of(task) if args is None else _steps(name, what)
    function = backend_of(task.target).lower(task, steps, name)
    params = function.params if order is None else tuple(function.params[index] for index in order)
    return str(replace(function, params=params))


def _are_tensors(argument: object) -> bool:
    return isinstance(argument, list | tuple) and bool(argument) and all(isinstance(item, Tensor) for item in argument)


def _build_any(what: Any, target: Any, name: str | None, steps: Any) -> Module:
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
    if not task.target.traits.uses_host_memory:
        raise LoweringError(
            f"{name}: a module holds functions for CPUs, not for {task.target}; for a GPU there is "
            "retune.compiler.driver.build.build"
        )
    chosen = default_steps_of(task) if steps is None else _steps(name, steps)
    # A symbol of its own: a program that loads the module has a `main` too.
    return as_function(name, build_kernel(task, chosen, f"retune_{name}"), task.target, order)


def _steps(name: str, program: object) -> Sequence[Step]:
    """The steps of a program or a state, or the steps themselves. Raises: DefinitionError when they are none."""
    steps = program if isinstance(program, Sequence) else getattr(program, "steps", None)
    if not isinstance(steps, Sequence) or not all(isinstance(step, Step) for step in steps):
        raise DefinitionError(f"{name}: the steps of a program, or a state, are needed, not {steps!r:.80}")
    return steps


def _task(name: str, what: Buildable, target: Target | None) -> tuple[SearchTask, Sequence[int] | None]:
    """The task that a function is built from, and which of the kernel's arguments the function takes at each place."""
    if isinstance(what, SearchTask):
        if target is None:
            return what, None
        # Not by `replace`: a subclass may have other parameters.
        return SearchTask(what.name, what.dag, target, hardware_of(target, 1), what.key, what.layout), None
    chosen = target or Target.host()
    if isinstance(what, ComputeDAG):
        return SearchTask(name, what, chosen, hardware_of(chosen, 1), layout=LayoutRewriteOption.NO_REWRITE), None
    function = what if isinstance(what, PrimFunc) else create_prim_func(what, name)
    dag = ComputeDAG(function.args)
    task = SearchTask(name, dag, chosen, hardware_of(chosen, 1), layout=LayoutRewriteOption.NO_REWRITE)
    places = (*dag.inputs, *dag.outputs)
    return task, [places.index(tensor) for tensor in function.args]
