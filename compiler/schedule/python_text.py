"""Prints the steps of a state as Python calls of `retune.compiler.schedule.primitives`.

The text runs, with the graph as `dag`, and leaves an equal state in `state`. The signature of a primitive says how the
fields of its step are printed.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from inspect import signature

from retune.compiler.schedule import primitives
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.primitives import LoopRef, StageRef
from retune.compiler.schedule.state import ANNOTATION_TEXT, Annotation, State
from retune.compiler.schedule.steps import Annotate, Step, steps_of

_LOOP_FUNCTIONS = {
    Annotation.PARALLEL: "parallel",
    Annotation.VECTORIZE: "vectorize",
    Annotation.UNROLL: "unroll",
    Annotation.TENSORIZE: "tensorize",
}


def print_python_code_from_state(dag: ComputeDAG, state: State) -> str:
    """The steps that made `state` of `dag`, one call a line, stages and loops by name.

    Raises: ScheduleError for a tile size that is not chosen yet.
    """
    current = State.initial(dag)
    calls: list[str] = []
    used: set[str] = set()
    # Names are those before each step: later steps add stages and split loops.
    for step in steps_of(state):
        name, arguments = _call(current, step)
        used.add(name)
        returns_state = signature(getattr(primitives, name)).return_annotation is State
        calls.append(f"{'state' if returns_state else 'state, _'} = {name}({', '.join(['state', *arguments])})")
        current = current.apply(step)
    lines = []
    if used:
        lines.append(f"from retune.compiler.schedule.primitives import {', '.join(sorted(used))}")
    lines.append("from retune.compiler.schedule.state import State")
    return "\n".join([*lines, "", "state = State.initial(dag)", *calls, ""])


def _call(state: State, step: Step) -> tuple[str, list[str]]:
    """The primitive that makes a step, which has the name of its class, and its arguments after the state."""
    if isinstance(step, Annotate):
        where = [_stage(state, step.stage), _loop(state, step.stage, step.iter)]
        kind = Annotation(step.annotation)
        if kind in _LOOP_FUNCTIONS:
            return _LOOP_FUNCTIONS[kind], where
        return "bind", [*where, repr(ANNOTATION_TEXT[kind])]
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(step).__name__).lower()
    return name, list(_arguments(state, step, name))


def _arguments(state: State, step: Step, name: str) -> Iterator[str]:
    parameters = list(signature(getattr(primitives, name)).parameters.values())[1:]
    plain = dict(zip((field.name for field in fields(step)), step.to_row()[1:], strict=True))
    plain.pop("extent", None)  # of a split, which the primitive finds in the state
    stage = step.stage
    for parameter, (field, value) in zip(parameters, plain.items(), strict=True):
        if parameter.annotation == StageRef:
            stage = value
            yield _stage(state, value)
        elif parameter.annotation == LoopRef:
            yield _loop(state, stage, value)
        elif parameter.annotation == Sequence[LoopRef]:
            yield f"[{', '.join(_loop(state, stage, number) for number in value)}]"
        elif parameter.annotation == Sequence[StageRef]:
            yield f"[{', '.join(_stage(state, number) for number in value)}]"
        elif parameter.annotation is bool:
            if bool(value) != parameter.default:
                yield f"{field}={bool(value)}"
        else:
            yield repr(value)


def _stage(state: State, number: int) -> str:
    """The name of a stage in quotes, or the number when several stages have that name."""
    names = [op.name for op in state.dag.ops]
    return repr(names[number]) if names.count(names[number]) == 1 else str(number)


def _loop(state: State, stage: int, number: int) -> str:
    """The name of a loop in quotes; a pragma may name a loop that does not exist."""
    iters = state.stages[stage].iters
    return repr(iters[number].name) if 0 <= number < len(iters) else str(number)
