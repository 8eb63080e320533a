"""Loops of ONNX as one operator: the body is converted once, as the graph of a step.

A loop stays to be unrolled if its body needs the number of the step to be known, ends the loop by itself, changes the
shape of a state, or has an operator that cannot run in a step. The log says why.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.core.errors import DefinitionError, UnsupportedOperatorError
from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.loops.step_graph import Rows, StepBuilder
from retune.compiler.graph.builder import GraphBuilder

_log = logging.getLogger(__name__)

_FEW_NODES = 64
"""Loops of at most as many nodes are unrolled: their nodes join kernels with others, and are tuned one by one."""


@dataclass(frozen=True, slots=True)
class OnnxScan:
    """The operands and attributes of a Scan: first states, sequences, and the axis and direction of each result."""

    steps: int
    states: tuple[str, ...]
    sequences: tuple[Rows, ...]
    result_axes: tuple[int, ...]
    backward: tuple[bool, ...]


def read_scan(builder: GraphBuilder, node: OnnxNode) -> OnnxScan:
    """Raises: UnsupportedOperatorError when the sequences do not fit the attributes or each other."""
    count = node.integer("num_scan_inputs", 0)
    if not 0 < count <= len(node.inputs):
        raise node.unsupported(f"num_scan_inputs {count} does not fit {len(node.inputs)} operands")
    states, names = node.inputs[:-count], node.inputs[-count:]
    axes = node.ints("scan_input_axes") or (0,) * count
    directions = node.ints("scan_input_directions") or (0,) * count
    shapes = [builder.value(name).shape for name in names]
    axes = tuple(node.axis(axis, len(shape)) for axis, shape in zip(axes, shapes, strict=True))
    lengths = {shape[axis] for axis, shape in zip(axes, shapes, strict=True)}
    if len(lengths) != 1:
        raise node.unsupported(f"its sequences have different lengths: {sorted(lengths)}")
    results = len(node.outputs) - len(states)
    return OnnxScan(
        lengths.pop(),
        states,
        tuple(Rows(*row) for row in zip(names, axes, map(bool, directions), strict=True)),
        node.ints("scan_output_axes") or (0,) * results,
        tuple(map(bool, node.ints("scan_output_directions") or (0,) * results)),
    )


def emit_as_scan(builder: GraphBuilder, node: OnnxNode) -> list[str] | None:
    """Emit a Loop or Scan as `scan`. Returns its results, "" for omitted results; None if it must be unrolled."""
    if node.op_type == "Scan":
        scan = read_scan(builder, node)
        results = _emit_steps(builder, node, scan.steps, scan)
        if results is None:
            return None
        first = len(scan.states)
        moved = zip(results[first:], scan.result_axes, strict=True)
        return [*results[:first], *(_move_rows(builder, node, name, axis) for name, axis in moved)]
    count, condition = (builder.array(node.inputs[i]) if node.has_input(i) else None for i in (0, 1))
    begins = not node.has_input(1) or (condition is not None and bool(condition.all()))
    if count is None or count.dtype == object or not begins:
        return None
    return _emit_steps(builder, node, int(count.item()), OnnxScan(0, node.inputs[2:], (), (), ()))


def _emit_steps(builder: GraphBuilder, node: OnnxNode, steps: int, scan: OnnxScan) -> list[str] | None:
    """Emit `steps` steps. Returns the last states, then the rows of results along a new first axis."""
    body = node.attributes.get("body")
    is_short = isinstance(steps, int) and steps * len(getattr(body, "node", ())) <= _FEW_NODES
    if not steps > 0 or is_short:
        return None
    try:
        inside = StepBuilder(builder, scan.states, scan.sequences)
        results, count = _convert_step(node, inside), len(scan.states)
        backward = (*scan.backward, *(False,) * (len(results) - count - len(scan.backward)))
        step = inside.finish(results[:count], results[count:], backward, steps, node.name)
        wanted = [bool(name) for name in node.outputs]
        return step.emit(builder, [*wanted, *(False,) * (len(results) - len(wanted))])
    except (DefinitionError, UnsupportedOperatorError) as error:
        _log.info("%s is unrolled: %s", node.label, error)
        return None


def _move_rows(builder: GraphBuilder, node: OnnxNode, rows: str, axis: int) -> str:
    """The rows along the first axis of a value, moved to another axis."""
    rank = len(builder.value(rows).shape) if rows else 0
    to = node.axis(axis, rank) if rows else 0
    if not to:
        return rows
    return builder.emit("transpose", [rows], {"perm": (*range(1, to + 1), 0, *range(to + 1, rank))})


def _convert_step(node: OnnxNode, inside: StepBuilder) -> Sequence[str]:
    """The results of the body."""
    if node.op_type != "Loop":
        return node.step("body", inside.builder, inside.capture, [*inside.states, *inside.rows])
    always = inside.builder.constant(np.asarray(True), "on")
    condition, *results = node.step("body", inside.builder, inside.capture, [inside.number, always, *inside.states])
    goes_on = inside.builder.array(condition)
    if goes_on is None or not goes_on.all():
        raise node.unsupported("its body decides whether it goes on")
    return results
