"""`scan`: a loop as one operator, whose steps run inside one kernel. The body of the loop is a graph.

The steps pass states on, take rows of sequences and make rows of results. The operands are the first states, the
sequences, and the values that every step reads. Results, of one type, are packed into one tensor: end to end along the
first axis if their rows have one shape, otherwise flat.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from retune.compiler import te
from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.expr import Const, Expr, Var
from retune.compiler.ops.op import Array, Attribute, FusionKind, Lowered, Op, OpCall, Operand, Shape, TensorType, Typed
from retune.compiler.ops.recurrence import with_axis
from retune.compiler.te.scan import scan_steps
from retune.compiler.te.tensor import MOVES_ELEMENTS, ComputeOp, Tensor, results_of

Source = int | Const
"""What a node of a body reads: value number `n`, or a number."""
COUNTER = "int64"
"""The type of the number of a step, from 0 on."""


@dataclass(frozen=True, slots=True)
class BodyNode:
    """A call of an operator."""

    op: str
    sources: tuple[Source, ...]
    attrs: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Body:
    """The graph of a step. Values are numbered: the step, the states, the rows, the other operands, then the results of
    `nodes`. `results` are the numbers of the next states and of the rows that a step makes.
    """

    nodes: tuple[BodyNode, ...]
    results: tuple[int, ...]

    def to_text(self) -> str:
        """The body as JSON. Raises: DefinitionError when an attribute is symbolic."""
        nodes = [[node.op, [*map(_source_to_json, node.sources)], dict(node.attrs)] for node in self.nodes]
        try:
            return json.dumps([nodes, self.results], separators=(",", ":"))
        except TypeError:
            raise DefinitionError("an attribute of the body of a loop is symbolic") from None

    @staticmethod
    def from_text(text: str) -> "Body":
        """The body of `to_text`. Raises: DefinitionError when the text is no body."""
        try:
            nodes, results = json.loads(text)
            return Body(tuple(_node(*node) for node in nodes), tuple(map(int, results)))
        except (ValueError, TypeError, AttributeError) as error:
            raise DefinitionError(f"the body of a loop cannot be read: {error}") from None


def _source_to_json(source: Source) -> object:
    return source if isinstance(source, int) else [source.dtype, source.value]


def _node(op: str, sources: list[Any], attrs: dict[str, Any]) -> BodyNode:
    read = tuple(te.const(source[1], source[0]) if isinstance(source, list) else int(source) for source in sources)
    return BodyNode(op, read, {key: tuple(value) if isinstance(value, list) else value for key, value in attrs.items()})


@dataclass(frozen=True, slots=True)
class _Loop:
    """A call: its attributes read, its operands sorted, and the types of all values of its body."""

    call: OpCall
    ops: Mapping[str, Op]
    body: Body
    states: int
    axes: tuple[int, ...]
    types: tuple[Typed, ...]

    @property
    def steps(self) -> int:
        return self.call.integer("steps")

    @property
    def first_row(self) -> int:
        """The number of the first sequence among the operands."""
        return self.states

    @property
    def first_other(self) -> int:
        """The number of the first operand that every step reads whole."""
        return self.states + len(self.axes)

    def is_state(self, value: int) -> bool:
        return value in self.body.results[: self.states]

    def result_type(self, number: int) -> Typed:
        return self.types[self.body.results[number]]

    def shown(self) -> list[tuple[int, bool]]:
        """The numbers of the packed results, and whether their rows are in reverse order."""
        return list(zip(self.call.ints("shown"), map(bool, self.call.ints("backward")), strict=True))

    def row(self, sequence: int, step: Any) -> Any:
        """The index of the row that a sequence gives to a step."""
        return self.steps - 1 - step if self.call.ints("reverse")[sequence] else step


def _read(call: OpCall, ops: Mapping[str, Op]) -> _Loop:
    """Check a call and type the values of its body. Raises: DefinitionError."""
    body, states, axes = Body.from_text(call.text("body")), call.integer("states"), call.ints("axes")
    call.require(call.integer("steps") > 0, "has no step")
    types: list[Typed] = [TensorType((), COUNTER), *_types_in_step(call, states, axes)]
    for node in body.nodes:
        operands = tuple(_type_of(call, types, source) for source in node.sources)
        call.require(node.op in ops and node.op != "recurrent", f"cannot run {node.op} in a step")
        lowered = ops[node.op].check(OpCall(node.op, operands, node.attrs, call.name))
        types.append(TensorType(lowered.shape, lowered.dtype))
    call.require(all(0 <= number < len(types) for number in body.results), "a result of the body is no value")
    made, shown = [types[number] for number in body.results], call.ints("shown")
    kept = all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(call.types[:states], made, strict=False))
    call.require(states <= len(made) and kept, "a state changes its shape or type")
    call.require(len(shown) == len(call.ints("backward")) and bool(shown), "shows no result")
    call.require(all(0 <= number < len(made) for number in shown), "shows a result that there is not")
    call.require(len({made[number].dtype for number in shown}) == 1, "packs results of several types")
    return _Loop(call, ops, body, states, axes, tuple(types))


def _types_in_step(call: OpCall, states: int, axes: Sequence[int]) -> list[Typed]:
    """The types of the operands as a step sees them: rows of the sequences."""
    steps, last = call.integer("steps"), states + len(axes)
    fits = states >= 0 and last <= len(call.types) and len(call.ints("reverse")) == len(axes)
    call.require(fits, "lacks operands")
    rows: list[Typed] = []
    for sequence, axis in zip(call.types[states:last], axes, strict=True):
        fits = 0 <= axis < len(sequence.shape) and sequence.shape[axis] == steps
        call.require(fits, f"a sequence needs {steps} rows along axis {axis}")
        rows.append(TensorType(_without(sequence.shape, axis), sequence.dtype))
    return [*call.types[:states], *rows, *call.types[last:]]


def _type_of(call: OpCall, types: Sequence[Typed], source: Source) -> Typed:
    if isinstance(source, Const):
        return TensorType((), source.dtype)
    call.require(0 <= source < len(types), "a node of the body reads no value")
    return types[source]


def _without(shape: Sequence[Any], axis: int) -> tuple[Any, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _packed_shape(loop: _Loop) -> Shape:
    """The shape of the result: the rows of all shown results, one after another."""
    shapes = [loop.result_type(number).shape for number, _ in loop.shown()]
    counts = [1 if number < loop.states else loop.steps for number, _ in loop.shown()]
    if len(set(shapes)) == 1:
        return (sum(counts), *shapes[0])
    return (sum(count * math.prod(shape) for count, shape in zip(counts, shapes, strict=True)),)


def _build(loop: _Loop, operands: Sequence[Tensor]) -> Tensor:
    ops, name = loop.ops, loop.call.name
    step = Var(f"{name}.step")
    made = [loop.result_type(number) for number in range(len(loop.body.results))]
    states = [
        te.placeholder((loop.steps + 1, *value.shape), value.dtype, f"{name}_state{number}")
        for number, value in enumerate(made)
    ]
    results = _step(loop, operands, states, step)
    # A row that is the next state as well is the same elements: rows of states are all in memory.
    distinct = [
        number for number, value in enumerate(loop.body.results) if number < loop.states or not loop.is_state(value)
    ]
    updates = _updates([results[number] for number in distinct], operands, name)
    inits = [
        with_axis(operands[number], f"{name}_first{number}")
        if number < loop.states
        else te.compute((1, *value.shape), lambda *_, dtype=value.dtype: te.const(0, dtype), f"{name}_first{number}")
        for number, value in ((number, made[number]) for number in distinct)
    ]
    rows = scan_steps(step, inits, updates, [states[number] for number in distinct], f"{name}_rows")
    of_value = {loop.body.results[number]: tensor for number, tensor in reversed([*zip(distinct, rows, strict=True)])}
    parts = [_part(loop, of_value[loop.body.results[number]], number, backward) for number, backward in loop.shown()]
    if len({part.shape[1:] for part in parts}) > 1:
        flat = [{"shape": (math.prod(part.shape),)} for part in parts]
        parts = [
            ops["reshape"].tensor([part], attrs, name=f"{part.name}_flat")
            for part, attrs in zip(parts, flat, strict=True)
        ]
    return parts[0] if len(parts) == 1 else ops["concat"].tensor(parts, {"axis": 0}, name=name)


def _step(loop: _Loop, operands: Sequence[Tensor], states: Sequence[Tensor], step: Var) -> list[Tensor]:
    """The results of the body in step `step`, which counts from 1."""
    name, moves = loop.call.name, {MOVES_ELEMENTS: True}
    values = [te.compute((), lambda: te.cast(COUNTER, step - 1), f"{name}_step")]
    for state in states[: loop.states]:
        values.append(te.compute(state.shape[1:], lambda *i, s=state: s[(step - 1, *i)], f"{state.name}_last", moves))
    for number, axis in enumerate(loop.axes):
        source = operands[loop.first_row + number]
        index = loop.row(number, step - 1)
        values.append(
            te.compute(
                _without(source.shape, axis),
                lambda *i, s=source, a=axis, t=index: s[(*i[:a], t, *i[a:])],
                f"{name}_row{number}",
                moves,
            )
        )
    values += operands[loop.first_other :]
    uses = [source for node in loop.body.nodes for source in node.sources]
    for number, node in enumerate(loop.body.nodes):
        read: list[Operand] = [values[source] if isinstance(source, int) else source for source in node.sources]
        once = {values[source] for source in node.sources if isinstance(source, int) and uses.count(source) == 1}
        tensor = loop.ops[node.op].tensor(
            read, node.attrs, name=f"{name}_{number}_{node.op}", constants=loop.call.constants & once
        )
        values.append(tensor)
    return [values[number] for number in loop.body.results]


def _updates(results: Sequence[Tensor], operands: Sequence[Tensor], name: str) -> list[Tensor]:
    """The results as what a scan takes for its updates: computes with one result each, which update nothing else."""
    updates: list[Tensor] = []
    for number, tensor in enumerate(results):
        op = tensor.op
        # The attributes of some computes do not hold for a state, see `retune.compiler.te.scan`.
        is_plain = isinstance(op, ComputeOp) and len(results_of(op)) == 1 and not op.attrs
        is_plain = is_plain and tensor not in (*updates, *operands)
        updates.append(tensor if is_plain else te.compute(tensor.shape, _read_of(tensor), f"{name}_next{number}"))
    return updates


def _read_of(tensor: Tensor) -> Callable[..., Expr]:
    return lambda *point: tensor[point] if point else tensor[()]


def _part(loop: _Loop, rows: Tensor, number: int, backward: bool) -> Tensor:
    """The rows of a shown result: of a state the last one, of the others all, without the value before the steps."""
    steps = loop.steps
    count = 1 if number < loop.states else steps

    def body(t: Any, *i: Any) -> Any:
        return rows[(steps if number < loop.states else steps - t if backward else t + 1, *i)]

    name = loop.call.name if len(loop.shown()) == 1 else f"{loop.call.name}_part{number}"
    part: Tensor = te.compute((count, *rows.shape[1:]), body, name, {MOVES_ELEMENTS: True})
    return part


def _evaluate(loop: _Loop, arrays: Sequence[Array]) -> Array:
    """Run the steps by the NumPy meaning of the nodes."""
    state, made = list(arrays[: loop.states]), list[list[Array]]()
    for step in range(loop.steps):
        values = [np.asarray(step, COUNTER), *state]
        for number, axis in enumerate(loop.axes):
            values.append(np.take(arrays[loop.first_row + number], loop.row(number, step), axis))
        values += arrays[loop.first_other :]
        for node in loop.body.nodes:
            read = [
                values[source] if isinstance(source, int) else np.asarray(source.value, source.dtype)
                for source in node.sources
            ]
            types = tuple(TensorType(array.shape, array.dtype.name) for array in read)
            values.append(loop.ops[node.op].compute(OpCall(node.op, types, node.attrs, loop.call.name), read))
        results = [values[number] for number in loop.body.results]
        state = results[: loop.states]
        made.append(results)
    parts = []
    for number, backward in loop.shown():
        rows = np.stack([results[number] for results in (made[-1:] if number < loop.states else made)])
        parts.append(rows[::-1] if backward and number >= loop.states else rows)
    shape = _packed_shape(loop)
    return np.concatenate([part.reshape(-1, *shape[1:]) for part in parts])


def operators(ops: Mapping[str, Op]) -> Sequence[Op]:
    """The operator; the nodes of bodies are calls of `ops`."""

    def lower(call: OpCall) -> Lowered:
        """The packed results of a loop: last states, and the rows that its steps make."""
        loop = _read(call, ops)

        def build(*operands: Tensor) -> Tensor:
            return _build(loop, operands)

        return Lowered(_packed_shape(loop), loop.result_type(loop.shown()[0][0]).dtype, build)

    return (
        Op(
            "scan",
            None,
            FusionKind.OPAQUE,
            lower,
            lambda call, arrays: _evaluate(_read(call, ops), arrays),
            {
                "body": str,
                "steps": int,
                "states": int,
                "axes": tuple,
                "reverse": tuple,
                "shown": tuple,
                "backward": tuple,
            },
        ),
    )
