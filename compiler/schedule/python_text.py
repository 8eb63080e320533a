"""Prints the steps of a state as Python calls of `retune.compiler.schedule.primitives`.

The text runs, with the graph as `dag`, and leaves an equal state in `state`.
"""

from collections.abc import Callable
from typing import Any

from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import ANNOTATION_TEXT, Annotation, State, Step
from retune.compiler.schedule.steps import (
    Annotate,
    AsMatmul,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    ComputeRoot,
    FollowFusedSplit,
    FollowSplit,
    Fuse,
    Pipeline,
    Pragma,
    Reorder,
    Rfactor,
    Split,
    StorageAlign,
)

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
    for step in state.steps:
        function, *arguments = _FORMS[type(step)](_Namer(current), step)
        used.add(function)
        result = "state" if function in _STATE_ONLY else "state, _"
        calls.append(f"{result} = {function}({', '.join(['state', *map(str, arguments)])})")
        current = current.apply(step)
    lines = []
    if used:
        lines.append(f"from retune.compiler.schedule.primitives import {', '.join(sorted(used))}")
    lines.append("from retune.compiler.schedule.state import State")
    return "\n".join([*lines, "", "state = State.initial(dag)", *calls, ""])


class _Namer:
    """Writes the stages and loops of a state."""

    def __init__(self, state: State) -> None:
        self.state = state

    def stage(self, number: int) -> str:
        """The name in quotes, or the number when several stages have that name."""
        names = [op.name for op in self.state.dag.ops]
        return repr(names[number]) if names.count(names[number]) == 1 else str(number)

    def loop(self, stage: int, number: int) -> str:
        """The name in quotes; a pragma may name a loop that does not exist."""
        iters = self.state.stages[stage].iters
        return repr(iters[number].name) if 0 <= number < len(iters) else str(number)

    def loops(self, stage: int, numbers: tuple[int, ...]) -> str:
        return f"[{', '.join(self.loop(stage, number) for number in numbers)}]"


def _split(names: _Namer, step: Split) -> tuple[str, ...]:
    lengths = step.to_row()[4]
    order = () if step.inner_to_outer else ("inner_to_outer=False",)
    return "split", names.stage(step.stage), names.loop(step.stage, step.iter), str(lengths), *order


def _annotate(names: _Namer, step: Annotate) -> tuple[str, ...]:
    kind = Annotation(step.annotation)
    where = names.stage(step.stage), names.loop(step.stage, step.iter)
    if kind in _LOOP_FUNCTIONS:
        return _LOOP_FUNCTIONS[kind], *where
    return "bind", *where, repr(ANNOTATION_TEXT[kind])


def _follow_fused(names: _Namer, step: FollowFusedSplit) -> tuple[str, ...]:
    where = names.stage(step.stage), names.loop(step.stage, step.iter)
    side = () if step.by_factor else ("by_factor=False",)
    return "follow_fused_split", *where, str(list(step.source_steps)), str(step.level), *side


def _at(name: str, *fields: str) -> Callable[[_Namer, Any], tuple[str, ...]]:
    """The form of a step of one loop: stage, loop, then `fields`."""

    def form(names: _Namer, step: Any) -> tuple[str, ...]:
        where = names.stage(step.stage), names.loop(step.stage, step.iter)
        return name, *where, *(repr(getattr(step, field)) for field in fields)

    return form


_FORMS: dict[type[Step], Callable[[_Namer, Any], tuple[str, ...]]] = {
    Split: _split,
    Annotate: _annotate,
    FollowFusedSplit: _follow_fused,
    FollowSplit: _at("follow_split", "source_step", "n_split"),
    Pragma: _at("pragma", "text"),
    Pipeline: _at("pipeline", "depth"),
    AsMatmul: lambda names, step: ("as_matmul", names.stage(step.stage), repr(step.kind)),
    StorageAlign: _at("storage_align", "factor", "offset"),
    Rfactor: _at("rfactor", "factor_iter"),
    Fuse: lambda names, step: ("fuse", names.stage(step.stage), names.loops(step.stage, step.iters)),
    Reorder: lambda names, step: ("reorder", names.stage(step.stage), names.loops(step.stage, step.order)),
    ComputeAt: lambda names, step: (
        "compute_at",
        names.stage(step.stage),
        names.stage(step.target_stage),
        names.loop(step.target_stage, step.target_iter),
    ),
    ComputeInline: lambda names, step: ("compute_inline", names.stage(step.stage)),
    ComputeRoot: lambda names, step: ("compute_root", names.stage(step.stage)),
    CacheWrite: lambda names, step: ("cache_write", names.stage(step.stage), repr(step.scope)),
    CacheRead: lambda names, step: (
        "cache_read",
        names.stage(step.stage),
        repr(step.scope),
        f"[{', '.join(map(names.stage, step.readers))}]",
    ),
}
_STATE_ONLY = {"reorder", "pragma", "pipeline", "storage_align", "compute_at", "compute_inline", "compute_root"}
