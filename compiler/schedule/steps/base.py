"""The interface of transform steps.

A step is an immutable class; replay, printing, storage and comparison use its fields. Its log form is a JSON list that
starts with its tag, as in TVM's logs.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, cast

import numpy as np

from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule.state import Iterator, Stage, State
from retune.compiler.te.tensor import ExternOp, ScanOp

_LARGEST = 2**31
"""The bound of numbers in records, which become arrays of int64."""

_BY_TAG: dict[str, type["Step"]] = {}


@dataclass(frozen=True, slots=True)
class Step:
    """One transform of one stage. Subclasses are the leaves of the grammar; each registers its `tag`."""

    tag: ClassVar[str] = ""
    only_readers: ClassVar[bool] = False

    stage: int

    def __init_subclass__(cls) -> None:
        if cls.tag:
            _BY_TAG[cls.tag] = cls

    def apply(self, state: State) -> State:
        """The state after this step.

        Raises: ScheduleError naming the stage, the loop and the way out.
        """
        raise NotImplementedError

    def to_row(self) -> list[Any]:
        """The log form: the tag, then the fields in order. Raises: ScheduleError for an unknown tile size."""
        return [self.tag, *(_plain(getattr(self, item.name)) for item in fields(self))]


def _plain(value: object) -> object:
    # First, since a bool is an int to Python; TVM's logs have 0 and 1.
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, str)):
        return int(value) if isinstance(value, int) else value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.integer):
        return int(value)
    raise ScheduleError(f"a step with the value {value!r} cannot be written to a record; fill in its tile sizes first")


def iterator_of(state: State, stage_id: int, iter_id: int) -> Iterator:
    """Loop number `iter_id` of a stage.

    Raises: ScheduleError when there is none.
    """
    stage = state.stage(stage_id)
    if not 0 <= iter_id < len(stage.iters):
        raise ScheduleError(f"{stage.op.name}: there is no loop {iter_id}; the stage has {len(stage.iters)}")
    return stage.iters[iter_id]


def splice(iters: Sequence[Iterator], start: int, count: int, new: Iterable[Iterator]) -> tuple[Iterator, ...]:
    """The loops with `count` of them, from `start` on, replaced by `new`."""
    return (*iters[:start], *new, *iters[start + count :])


def refuse_attached(state: State, stage_id: int, action: str) -> None:
    """Check that no stage is computed inside a loop of this stage. Raises: ScheduleError that names the inner stage."""
    stage = state.stage(stage_id)
    for index in range(len(stage.iters)):
        for inner in state.attached_at(stage_id, index):
            raise ScheduleError(
                f"{stage.op.name}: cannot {action}: {state.stages[inner].op.name} is computed inside; move that first"
            )


def refuse_function_input(state: State, stage_id: int, action: str) -> None:
    """Check that no function reads this stage's result, which must then be whole and dense in memory.

    Raises: ScheduleError that names the stage which calls the function.
    """
    for reader in state.dag.readers[stage_id]:
        op = state.stages[reader].op
        if isinstance(op, ExternOp):
            raise ScheduleError(
                f"{state.stage(stage_id).op.name}: cannot {action}: {op.name} gives it to the function "
                f"{op.call.function}, which needs the whole tensor in memory"
            )
        if isinstance(op, ScanOp):
            raise ScheduleError(
                f"{state.stage(stage_id).op.name}: cannot {action}: it is a state of the scan {op.name}, which later "
                "steps read in memory"
            )


def refuse_annotated(stage: Stage, action: str) -> None:
    """Check that the stage has no annotation, unroll limit or alignment that a fresh stage would drop.

    Raises: ScheduleError that names the loop.
    """
    refuse_family(stage, action)
    for iterator in stage.iters:
        if iterator.annotation:
            raise ScheduleError(
                f"{stage.op.name}: cannot {action}: its loop {iterator.name} is annotated; annotate afterwards"
            )
    if not (isinstance(stage.unroll_limit, int) and stage.unroll_limit == 0):
        raise ScheduleError(f"{stage.op.name}: cannot {action}: it has an unroll limit; set that afterwards")
    if stage.alignment is not None:
        raise ScheduleError(f"{stage.op.name}: cannot {action}: its storage is aligned; align it afterwards")


def refuse_family(stage: Stage, action: str) -> None:
    """Check that the stage is the same operation in every program. Raises: ScheduleError."""
    if stage.family is not None:
        raise ScheduleError(
            f"{stage.op.name}: cannot {action}: a reduction was factored by many lengths at once; replay one program"
        )


def _whole(value: object) -> int:
    # A bool is an int to Python, but no number of a record.
    if not isinstance(value, int) or isinstance(value, bool):
        raise ScheduleError(f"{value!r} is no integer")
    if abs(value) > _LARGEST:
        raise ScheduleError(f"a number of {value.bit_length()} bits is no length, and numbers nothing")
    return value


def _numbers(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ScheduleError(f"{value!r} is no list of numbers")
    return tuple(map(_whole, value))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ScheduleError(f"{value!r} is no text")
    return value


_FIELD_READERS: dict[str, Callable[[object], Any]] = {
    "iters": _numbers,
    "order": _numbers,
    "lengths": _numbers,
    "source_steps": _numbers,
    "readers": _numbers,
    "inner_to_outer": lambda value: bool(_whole(value)),
    "by_factor": lambda value: bool(_whole(value)),
    "text": _text,
    "scope": _text,
    "kind": _text,
}
"""How a field is read; a field that is not listed is an integer."""


@cache
def _readers_of(tag: str) -> tuple[Callable[[object], Any], ...]:
    """How the fields of the steps with `tag` are read, in their order."""
    return tuple(_FIELD_READERS.get(field.name, _whole) for field in fields(_BY_TAG[tag]))


def step_from_row(row: Sequence[object]) -> Step:
    """The step that `Step.to_row` wrote.

    Raises: ScheduleError for an unknown tag, a wrong number of fields, or a field of another type.
    """
    if not isinstance(row, list) or not row or not isinstance(row[0], str) or row[0] not in _BY_TAG:
        raise ScheduleError(f"unknown transform step {row!r}; known tags: {', '.join(sorted(_BY_TAG))}")
    kind = _BY_TAG[row[0]]
    readers = _readers_of(row[0])
    if len(row) - 1 != len(readers):
        raise ScheduleError(f"the step {row!r} must have {len(readers)} fields after its tag")
    return kind(*(read(value) for read, value in zip(readers, row[1:], strict=True)))


def steps_of(state: State) -> tuple[Step, ...]:
    return cast(tuple[Step, ...], state.steps)


def dump_steps(steps: Iterable[Step]) -> str:
    """The steps as one JSON text, the form that records keep."""
    return json.dumps([step.to_row() for step in steps], separators=(",", ":"))


def load_steps(text: str) -> tuple[Step, ...]:
    """The steps of `dump_steps`.

    Raises: ScheduleError when the text is not a list of steps.
    """
    try:
        # Text nested too deep for Python's recursion is refused like any other.
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScheduleError(f"transform steps are not JSON: {error}") from None
    if not isinstance(rows, list):
        raise ScheduleError("transform steps must be a JSON list")
    return tuple(step_from_row(row) for row in rows)
