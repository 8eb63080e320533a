"""Helpers for operator libraries whose weights are already in a rewritten layout.

The operator is written as if the weight had its usual shape, and its body is rewritten afterwards:

    weight = placeholder((4, 8, 4, 4, 512))                    # layout 4j8j4j4j512k
    remove_index_check(weight)
    out = compute((n, m), lambda i, j: sum(x[i, k] * weight[k, j], k), attrs={"layout_free_placeholders": (weight,)})
    out = rewrite_compute_body(out, "4j8j4j4j512k")
"""

from collections.abc import Sequence
from math import prod

from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.expr import Expr
from retune.compiler.ir.visit import transform
from retune.compiler.schedule.default.layout import digit_values, parse_layout
from retune.compiler.schedule.graph_edits import attrs_of_result
from retune.compiler.te.reduction import Axis
from retune.compiler.te.tensor import ComputeOp, PlaceholderOp, Tensor, TensorRead


def remove_index_check(tensor: Tensor) -> None:
    """Let an input be read with any number of indices; `rewrite_compute_body` must correct the reads.

    Raises: DefinitionError when the tensor is computed.
    """
    object.__setattr__(_input_of(tensor), "index_checked", False)


def rewrite_tensor_shape(tensor: Tensor, shape: Sequence[int]) -> None:
    """Set the shape of an input in place, to that before or after its layout was rewritten.

    Raises: DefinitionError when the tensor is computed, or the shape has another number of elements.
    """
    op = _input_of(tensor)
    new = PlaceholderOp(op.name, tuple(shape), op.dtype)
    if prod(new.shape) != prod(op.shape):
        raise DefinitionError(f"{op.name}: the shape {new.shape} does not hold the elements of {op.shape}")
    # In place, though operations are immutable elsewhere: TVM's function does so, and scripts drop its result.
    object.__setattr__(op, "shape", new.shape)


def rewrite_compute_body(compute_tensor: Tensor, new_layout: str) -> Tensor:
    """The computation with its only input of free layout read in `new_layout`.

    Its indices must be axes, or the literal 0 where the extent is 1.
    Raises: DefinitionError unless there is exactly one such input, ScheduleError when the layout has other axes.
    """
    op = compute_tensor.op
    free = tuple(op.attrs.get("layout_free_placeholders", ()))
    if not isinstance(op, ComputeOp) or len(free) != 1:
        raise DefinitionError(f"{op.name}: it must list one input in layout_free_placeholders, it lists {len(free)}")
    axes = [axis.name for axis in (*op.axes, *op.reduce_axes)]
    digits = parse_layout(new_layout, axes)
    if tuple(digit.extent for digit in digits) != free[0].shape:
        raise DefinitionError(f"{op.name}: {free[0].name} has the shape {free[0].shape}, not that of {new_layout!r}")

    def laid_out(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead) or node.tensor.op is not free[0].op:
            return None
        named = {index.name: index for index in node.indices if isinstance(index, Axis)}
        missing = [digit.axis for digit in digits if digit.axis not in named]
        if missing:
            raise DefinitionError(f"{op.name}: {node} is not indexed by {missing[0]}, an axis of {new_layout!r}")
        return TensorRead(node.tensor, digit_values(digits, dict(named)))

    return Tensor(ComputeOp(op.name, op.axes, transform(op.body, laid_out), attrs_of_result(op.attrs)))


def _input_of(tensor: Tensor) -> PlaceholderOp:
    if not isinstance(tensor.op, PlaceholderOp):
        raise DefinitionError(f"{tensor.name} is computed; only an input can be laid out again")
    return tensor.op
