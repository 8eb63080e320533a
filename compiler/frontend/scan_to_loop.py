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
from retune.compiler.frontend.ops.attributes import read_attributes
from retune.compiler.frontend.ops.conversion import name_of
from retune.compiler.frontend.types import param_of
from retune.compiler.graph.ir import Array
from retune.compiler.graph.region import Param

_END = np.iinfo(np.int64).max


@dataclass(slots=True)
class _Nodes:
    """Writes ONNX nodes.

    `constant` (array, proposed name) adds a constant and `fresh` (proposed name) makes a unique name; both return the
    name. `label` prefixes node names. `made` are the nodes so far, and `known` describes their results.
    """

    constant: Callable[[Array, str], str]
    fresh: Callable[[str], str]
    label: str
    made: list[onnx.NodeProto] = field(default_factory=list)
    known: list[Param] = field(default_factory=list)

    def emit(self, op: str, inputs: Sequence[str], result: Param | None = None, **attributes: Any) -> str:
        """Append a node; `result` describes its result, by default a new value of integers."""
        result = result or Param(self.fresh(f"{self.label}_{op.lower()}"), "int64")
        self.made.append(helper.make_node(op, list(inputs), [result.name], name=self.label, **attributes))
        self.known.append(result)
        return result.name

    def numbers(self, numbers: int | list[int]) -> str:
        return self.constant(np.asarray(numbers, "int64"), f"{self.label}_numbers")

    def sliced(self, name: str, start: int, end: int, step: int = 1, result: Param | None = None) -> str:
        """A part of the first axis."""
        return self.emit("Slice", [name, *(self.numbers([number]) for number in (start, end, 0, step))], result)


def as_loop(
    node: onnx.NodeProto,
    types: Mapping[str, Param],
    constant: Callable[[Array, str], str],
    fresh: Callable[[str], str],
) -> tuple[list[onnx.NodeProto], list[Param]]:
    """The nodes in place of a Scan, whose results keep their names, and the types of new values.

    Raises: UnsupportedOperatorError when its attributes do not fit, or the rank of a row collected along another axis
    than the first is unknown.
    """
    label, attributes, inner = name_of(node), read_attributes(node), body(node, "body")
    count = int(attributes["num_scan_inputs"])
    state, sequences = list(node.input[:-count]), list(node.input[-count:])
    axes = attributes.get("scan_input_axes") or [0] * count
    backwards = attributes.get("scan_input_directions") or [0] * count
    if len(axes) != count or len(backwards) != count:
        raise UnsupportedOperatorError(f"{label!r} (Scan): its axes or directions do not fit its {count} sequences")
    write = _Nodes(constant, fresh, label)
    length = _length(write, sequences[0], axes[0])
    others = [types.get(name, Param(name, None)) for name in sequences[1:]]
    same = [_of_length(write, sequence, axis, length) for sequence, axis in zip(others, axes[1:], strict=True)]
    iteration, on = fresh(f"{label}_turn"), fresh(f"{label}_on")
    rows = _Nodes(constant, fresh, label)
    last = rows.emit("Sub", [length, rows.numbers(1)]) if any(backwards) else ""
    for name, entry, axis, back in zip([sequences[0], *same], inner.input[-count:], axes, backwards, strict=True):
        index = rows.emit("Sub", [last, iteration]) if back else iteration
        rows.emit("Gather", [name, index], param_of(entry), axis=axis)
    iterations = onnx.GraphProto(name=label)
    iterations.input.append(helper.make_tensor_value_info(iteration, TensorProto.INT64, ()))
    iterations.input.append(helper.make_tensor_value_info(on, TensorProto.BOOL, ()))
    iterations.input.extend(inner.input[:-count])
    iterations.node.extend([*rows.made, *inner.node])
    iterations.output.append(helper.make_tensor_value_info(on, TensorProto.BOOL, ()))
    iterations.output.extend(inner.output)
    iterations.value_info.extend([*inner.value_info, *inner.input[-count:]])
    results, after = _collected(write, node, attributes, len(state), types)
    # The body returns its own condition: only the count ends the loop.
    loop = helper.make_node("Loop", [length, "", *state], results, name=label, body=iterations)
    return [*write.made, loop, *after.made], [*write.known, *after.known]


def _length(write: _Nodes, sequence: str, axis: int) -> str:
    """The number of iterations, a scalar."""
    count = Param(write.fresh(f"{write.label}_length"), "int64", ())
    return write.emit("Gather", [write.emit("Shape", [sequence]), write.numbers(axis)], count)


def _of_length(write: _Nodes, sequence: Param, axis: int, length: str) -> str:
    """The sequence itself, through a reshape that checks its length."""
    shape = write.emit("Shape", [sequence.name])
    before, after = write.sliced(shape, 0, axis), write.sliced(shape, axis + 1 if axis != -1 else _END, _END)
    row = write.emit("Unsqueeze", [length, write.numbers([0])])
    target = write.emit("Concat", [before, row, after], axis=0)
    return write.emit("Reshape", [sequence.name, target], replace(sequence, name=write.fresh(sequence.name)))


def _collected(
    write: _Nodes, node: onnx.NodeProto, attributes: Mapping[str, Any], carried: int, types: Mapping[str, Param]
) -> tuple[list[str], _Nodes]:
    """The names of the loop's results, and the nodes that make the scan's results from them."""
    results = list(node.output)
    rows = results[carried:]
    axes = attributes.get("scan_output_axes") or [0] * len(rows)
    reverse = attributes.get("scan_output_directions") or [0] * len(rows)
    if len(axes) != len(rows) or len(reverse) != len(rows):
        raise UnsupportedOperatorError(f"{write.label!r} (Scan): its axes or directions do not fit its results")
    after = _Nodes(write.constant, write.fresh, write.label)
    for index, (name, axis, back) in enumerate(zip(rows, axes, reverse, strict=True), carried):
        # A loop stacks rows along the first axis, in order: nothing remains to be done.
        if not name or not (axis or back):
            continue
        known = types.get(name, Param(name, None))
        steps = results[index] = write.fresh(name)
        after.known.append(Param(steps, known.dtype))
        if back:
            turned = Param(write.fresh(name), known.dtype) if axis else known
            steps = after.sliced(steps, -1, -_END, -1, turned)
        if axis:
            dims = known.dims
            if dims is None or not -len(dims) <= axis < len(dims):
                raise UnsupportedOperatorError(
                    f"{write.label!r} (Scan): collects along axis {axis} rows of unknown rank"
                )
            order = list(range(1, len(dims)))
            order.insert(axis % len(dims), 0)
            after.emit("Transpose", [steps], known, perm=order)
    return results, after
