"""Converters of conditions, loops and scans into graphs without control flow.

A loop is unrolled, so its number of iterations must be known. A known condition leaves one branch; for a computed
condition both branches are computed, and the results are chosen element by element.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from retune.compiler.frontend.model_edits import all_nodes
from retune.compiler.frontend.model_file import MOST_NODES
from retune.compiler.frontend.ops.attributes import OnnxNode, ReportedError
from retune.compiler.frontend.ops.elementwise import Converter
from retune.compiler.frontend.ops.indexing import take
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
        condition, *results = node.body("body", (number, always, *carried))
        carried, rows = results[: len(carried)], results[len(carried) :]
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
    count = node.integer("num_scan_inputs", 0)
    if not 0 < count <= len(node.inputs):
        raise node.unsupported(f"num_scan_inputs {count} does not fit {len(node.inputs)} operands")
    state, sequences = list(node.inputs[:-count]), node.inputs[-count:]
    axes = node.ints("scan_input_axes") or (0,) * count
    backwards = node.ints("scan_input_directions") or (0,) * count
    ranks = [len(builder.value(name).shape) for name in sequences]
    axes = tuple(node.axis(axis, rank) for axis, rank in zip(axes, ranks, strict=True))
    lengths = {builder.value(name).shape[axis] for name, axis in zip(sequences, axes, strict=True)}
    if len(lengths) != 1:
        raise node.unsupported(f"its sequences have different lengths: {sorted(lengths)}")
    iterations = lengths.pop()
    node.check_iterations(iterations)
    body = node.attributes.get("body")
    # Before anything is unrolled: otherwise the nodes would be counted while memory fills.
    if isinstance(body, onnx.GraphProto) and iterations * sum(1 for _ in all_nodes(body)) > MOST_NODES:
        raise node.unsupported(f"more than {MOST_NODES:,} nodes once loops are unrolled")
    collected: list[list[str]] = [[] for _ in node.outputs[len(state) :]]
    for iteration in range(iterations):
        rows = [
            _row(builder, name, axis, iterations - 1 - iteration if back else iteration)
            for name, axis, back in zip(sequences, axes, backwards, strict=True)
        ]
        results = node.body("body", (*state, *rows))
        state, made = list(results[: len(state)]), results[len(state) :]
        for column, row in zip(collected, made, strict=True):
            column.append(row)
    outwards = node.ints("scan_output_axes") or (0,) * len(collected)
    reverse = node.ints("scan_output_directions") or (0,) * len(collected)
    results = [
        _stack(builder, node, rows[::-1] if back else rows, axis, len(state) + index)
        for index, (rows, axis, back) in enumerate(zip(collected, outwards, reverse, strict=True))
    ]
    return [*state, *results]


def _row(builder: GraphBuilder, name: str, axis: int, index: int) -> str:
    """The elements at `index` of an axis, without that axis."""
    shape = builder.value(name).shape
    row = take(builder, name, axis, [index])
    return builder.emit("reshape", [row], {"shape": (*shape[:axis], *shape[axis + 1 :])})


CONVERTERS: Mapping[str, Converter] = {"If": _if, "Loop": _loop, "Scan": _scan}
