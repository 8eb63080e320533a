"""Rewrites ONNX Scan as an equivalent Loop; all scanned sequences must have the same length.

Each iteration gathers its elements of the sequences. Collected outputs are reversed and transposed after the loop.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from retune.compiler.core.errors import UnsupportedOperatorError
from retune.compiler.frontend.dependence import body
from retune.compiler.frontend.model_file import name_of
from retune.compiler.frontend.ops.attributes import read_attributes
from retune.compiler.frontend.types import param_of
from retune.compiler.graph.ir import Array
from retune.compiler.graph.region import Param

_END = np.iinfo(np.int64).max


@dataclass(slots=True)
class _NodeWriter:
    """Writes ONNX nodes.

    `constant` (array, proposed name) adds a constant and `fresh` (proposed name) makes a unique name; both return the
    name. `label` prefixes node names. `nodes` are the nodes so far, and `params` the types of their results.
    """

    constant: Callable[[Array, str], str]
    fresh: Callable[[str], str]
    label: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    params: list[Param] = field(default_factory=list)

    def emit(self, op: str, inputs: Sequence[str], result: Param | None = None, **attributes: Any) -> str:
        """Append a node; `result` describes its result, by default a new value of integers."""
        result = result or Param(self.fresh(f"{self.label}_{op.lower()}"), "int64")
        self.nodes.append(helper.make_node(op, list(inputs), [result.name], name=self.label, **attributes))
        self.params.append(result)
        return result.name

    def integers(self, values: int | list[int]) -> str:
        """Add a constant of int64: a scalar, or a vector."""
        return self.constant(np.asarray(values, "int64"), f"{self.label}_numbers")

    def slice(self, name: str, start: int, end: int, step: int = 1, result: Param | None = None) -> str:
        """Emit `name[start:end:step]` along the first axis."""
        return self.emit("Slice", [name, *(self.integers([number]) for number in (start, end, 0, step))], result)


def scan_to_loop(
    scan: onnx.NodeProto, types: Mapping[str, Param], constant: Callable[[Array, str], str], fresh: Callable[[str], str]
) -> tuple[list[onnx.NodeProto], list[Param]]:
    """The nodes in place of a Scan, whose results keep their names, and the types of new values.

    `types` are the types of known values by name; `constant` and `fresh` are as in `_NodeWriter`.
    Raises: UnsupportedOperatorError when its attributes do not fit, or the rank of a row collected along another axis
    than the first is unknown.
    """
    label, attributes, inner = name_of(scan), read_attributes(scan), body(scan, "body")
    count = int(attributes["num_scan_inputs"])
    state, sequences = list(scan.input[:-count]), list(scan.input[-count:])
    axes = attributes.get("scan_input_axes") or [0] * count
    directions = attributes.get("scan_input_directions") or [0] * count
    if len(axes) != count or len(directions) != count:
        raise UnsupportedOperatorError(f"{label!r} (Scan): its axes or directions do not fit its {count} sequences")
    before = _NodeWriter(constant, fresh, label)
    length = _emit_length(before, sequences[0], axes[0])
    others = [types.get(name, Param(name, None)) for name in sequences[1:]]
    checked = [_check_length(before, sequence, axis, length) for sequence, axis in zip(others, axes[1:], strict=True)]
    iteration, condition = fresh(f"{label}_turn"), fresh(f"{label}_on")
    rows = _NodeWriter(constant, fresh, label)
    last = rows.emit("Sub", [length, rows.integers(1)]) if any(directions) else ""
    for name, entry, axis, is_reversed in zip(
        [sequences[0], *checked], inner.input[-count:], axes, directions, strict=True
    ):
        index = rows.emit("Sub", [last, iteration]) if is_reversed else iteration
        rows.emit("Gather", [name, index], param_of(entry), axis=axis)
    loop_body = onnx.GraphProto(name=label)
    loop_body.input.append(helper.make_tensor_value_info(iteration, TensorProto.INT64, ()))
    loop_body.input.append(helper.make_tensor_value_info(condition, TensorProto.BOOL, ()))
    loop_body.input.extend(inner.input[:-count])
    loop_body.node.extend([*rows.nodes, *inner.node])
    loop_body.output.append(helper.make_tensor_value_info(condition, TensorProto.BOOL, ()))
    loop_body.output.extend(inner.output)
    loop_body.value_info.extend([*inner.value_info, *inner.input[-count:]])
    after = _NodeWriter(constant, fresh, label)
    results = _emit_outputs(after, scan, attributes, len(state), types)
    # The body returns its own condition: only the count ends the loop.
    loop = helper.make_node("Loop", [length, "", *state], results, name=label, body=loop_body)
    return [*before.nodes, loop, *after.nodes], [*before.params, *after.params]


def _emit_length(writer: _NodeWriter, sequence: str, axis: int) -> str:
    """Emit the number of iterations, a scalar: the extent of `axis` of `sequence`."""
    result = Param(writer.fresh(f"{writer.label}_length"), "int64", ())
    return writer.emit("Gather", [writer.emit("Shape", [sequence]), writer.integers(axis)], result)


def _check_length(writer: _NodeWriter, sequence: Param, axis: int, length: str) -> str:
    """Emit a reshape of `sequence` to its own shape that fails unless its extent along `axis` is `length`."""
    shape = writer.emit("Shape", [sequence.name])
    before, after = writer.slice(shape, 0, axis), writer.slice(shape, axis + 1 if axis != -1 else _END, _END)
    extent = writer.emit("Unsqueeze", [length, writer.integers([0])])
    target = writer.emit("Concat", [before, extent, after], axis=0)
    return writer.emit("Reshape", [sequence.name, target], replace(sequence, name=writer.fresh(sequence.name)))


def _emit_outputs(
    writer: _NodeWriter, scan: onnx.NodeProto, attributes: Mapping[str, Any], first: int, types: Mapping[str, Param]
) -> list[str]:
    """Emit the reversals and transpositions that make the scan's outputs of the loop's results, and return their names.

    The results before `first` are the state, which stays as it is.
    """
    results = list(scan.output)
    outputs = results[first:]
    axes = attributes.get("scan_output_axes") or [0] * len(outputs)
    directions = attributes.get("scan_output_directions") or [0] * len(outputs)
    if len(axes) != len(outputs) or len(directions) != len(outputs):
        raise UnsupportedOperatorError(f"{writer.label!r} (Scan): its axes or directions do not fit its results")
    for index, (name, axis, is_reversed) in enumerate(zip(outputs, axes, directions, strict=True), first):
        # A loop stacks rows along the first axis, in order: nothing remains to be done.
        if not name or not (axis or is_reversed):
            continue
        output = types.get(name, Param(name, None))
        rows = results[index] = writer.fresh(name)
        writer.params.append(Param(rows, output.dtype))
        if is_reversed:
            in_order = Param(writer.fresh(name), output.dtype) if axis else output
            rows = writer.slice(rows, -1, -_END, -1, in_order)
        if axis:
            dims = output.dims
            if dims is None or not -len(dims) <= axis < len(dims):
                raise UnsupportedOperatorError(
                    f"{writer.label!r} (Scan): collects along axis {axis} rows of unknown rank"
                )
            order = list(range(1, len(dims)))
            order.insert(axis % len(dims), 0)
            writer.emit("Transpose", [rows], output, perm=order)
    return results
