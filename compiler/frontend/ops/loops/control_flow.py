"""Converters of conditions, loops and scans into graphs without control flow.

A loop that is no `scan` (see `loop_steps`) is unrolled, so its number of iterations must be known. A known condition
leaves one branch; for a computed condition both branches are computed, and the results are chosen element by element.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from retune.compiler.frontend.model_edits import all_nodes
from retune.compiler.frontend.model_file import MOST_NODES
from retune.compiler.frontend.ops.attributes import OnnxNode, ReportedError
from retune.compiler.frontend.ops.elementwise import Converter
from retune.compiler.frontend.ops.indexing import take
from retune.compiler.frontend.ops.loops.loop_steps import emit_as_scan, read_scan
from retune.compiler.frontend.types import param_of
from retune.compiler.graph.builder import GraphBuilder


def _if(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    condition = node.operand(builder, 0)
    known = builder.array(condition.name)
    if known is not None:
        if known.size != 1:
            raise node.unsupported("the condition must be a single bool")
        return node.body("then_branch" if known.item() else "else_branch", ())
    try:
        branches = [node.body(key, ()) for key in ("then_branch", "else_branch")]
    except ReportedError:
        # The branch may be for other shapes: a VAD has a branch for each sampling rate.
        node.array(builder, 0, "the condition, of which one branch cannot be computed,")
        raise
    described = [[(builder.value(name).shape, builder.value(name).dtype) for name in branch] for branch in branches]
    # A choice by element needs equal shapes; otherwise `array` raises with the names of the deciding inputs.
    if described[0] != described[1]:
        node.array(builder, 0, "the condition, on which the shape of a result depends,")
    flag = builder.emit("reshape", [condition.name], {"shape": ()})
    # Correct because ONNX nodes have no effects: both branches may be computed.
    return [
        builder.emit("where", [flag, then, otherwise], name=node.name)
        for then, otherwise in zip(*branches, strict=True)
    ]


def _loop(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    results = emit_as_scan(builder, node)
    if results is not None:
        return results
    iterations = None
    if node.has_input(0):
        iterations = int(node.array(builder, 0, "the number of iterations").item())
    going = not node.has_input(1) or bool(node.array(builder, 1, "whether the loop begins").item())
    carried = list(node.inputs[2:])
    collected: list[list[str]] = [[] for _ in node.outputs[len(carried) :]]
    iteration = 0
    # ONNX gives a loop two optional ends, a count and a condition; without both it never ends.
    while going and (iterations is None or iteration < iterations):
        node.check_iterations(iteration + 1)
        number, always = (
            builder.constant(np.asarray(iteration, "int64"), "turn"),
            builder.constant(np.asarray(True), "on"),
        )
        condition, *made = node.body("body", (number, always, *carried))
        carried, rows = made[: len(carried)], made[len(carried) :]
        for column, row in zip(collected, rows, strict=True):
            column.append(row)
        # Converters fold constants, so a condition that depends on the counter alone is known here.
        going = bool(node.known(builder, condition, "whether the loop goes on").item())
        iteration += 1
    first = 1 + len(carried)
    return [*carried, *(_stack(builder, node, rows, 0, first + index) for index, rows in enumerate(collected))]


def _stack(builder: GraphBuilder, node: OnnxNode, rows: Sequence[str], axis: int, output: int) -> str:
    """The values of one output of the body in all iterations, stacked along a new axis.

    Without an iteration the result is empty, with the body's dimensions, 0 for unknown ones.
    """
    if not rows:
        row = param_of(node.attributes["body"].output[output])
        if row.dtype is None:
            raise node.unsupported(
                "collects the results of iterations, but makes none, and nothing says their elements"
            )
        extents = [extent if isinstance(extent, int) else 0 for extent in row.dims or ()]
        extents.insert(node.axis(axis, len(extents) + 1), 0)
        return builder.constant(np.zeros(extents, row.dtype), "no_rows")
    shape = builder.value(rows[0]).shape
    axis = node.axis(axis, len(shape) + 1)
    wide = [builder.emit("reshape", [row], {"shape": (*shape[:axis], 1, *shape[axis:])}) for row in rows]
    return wide[0] if len(wide) == 1 else builder.emit("concat", wide, {"axis": axis}, name=node.name)


def _scan(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    made = emit_as_scan(builder, node)
    if made is not None:
        return made
    scan = read_scan(builder, node)
    state, iterations = list(scan.states), scan.steps
    node.check_iterations(iterations)
    body = node.attributes.get("body")
    # Before anything is unrolled: otherwise the nodes would be counted while memory fills.
    if isinstance(body, onnx.GraphProto) and iterations * sum(1 for _ in all_nodes(body)) > MOST_NODES:
        raise node.unsupported(f"more than {MOST_NODES:,} nodes once loops are unrolled")
    collected: list[list[str]] = [[] for _ in scan.result_axes]
    for iteration in range(iterations):
        entries = [
            _row(builder, rows.name, rows.axis, iterations - 1 - iteration if rows.is_reversed else iteration)
            for rows in scan.sequences
        ]
        results = node.body("body", (*state, *entries))
        state = list(results[: len(state)])
        for column, row in zip(collected, results[len(state) :], strict=True):
            column.append(row)
    stacks = [
        _stack(builder, node, column[::-1] if back else column, axis, len(state) + index)
        for index, (column, axis, back) in enumerate(zip(collected, scan.result_axes, scan.backward, strict=True))
    ]
    return [*state, *stacks]


def _row(builder: GraphBuilder, name: str, axis: int, index: int) -> str:
    """The elements at `index` of an axis, without that axis."""
    shape = builder.value(name).shape
    row = take(builder, name, axis, [index])
    return builder.emit("reshape", [row], {"shape": (*shape[:axis], *shape[axis + 1 :])})


CONVERTERS: Mapping[str, Converter] = {"If": _if, "Loop": _loop, "Scan": _scan}
