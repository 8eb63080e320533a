"""In: a node that finds or follows indices and the values it reads. Out: the shape and dtype of its result.

Always: a misfit names the node; places are int64.
"""

from collections.abc import Sequence

from retune.compiler.graph.infer import Result, misfit
from retune.compiler.graph.ir import Node, Value

REDUCTIONS = ("none", "add", "mul", "max", "min")
"""How a scattered element joins the one that is there."""


def _axis(node: Node, operands: Sequence[Value]) -> int:
    axis = node.integer("axis")
    if not 0 <= axis < len(operands[0].shape):
        raise misfit(node, operands, f"axis {axis} is outside the rank")
    return axis


def _check_indices(node: Node, operands: Sequence[Value]) -> None:
    if not operands[1].dtype.startswith(("int", "uint")):
        raise misfit(node, operands, "the indices must be integers")


def arg_reduction(node: Node, operands: Sequence[Value]) -> Result:
    """The axis becomes 1 (`keepdims`) or vanishes."""
    (x,) = operands
    axis = _axis(node, operands)
    middle = (1,) if node.flag("keepdims") else ()
    return (*x.shape[:axis], *middle, *x.shape[axis + 1 :]), "int64"


def top_k(node: Node, operands: Sequence[Value]) -> Result:
    """The axis has k elements."""
    (x,) = operands
    axis, k = _axis(node, operands), node.integer("k")
    if not 0 < k <= x.shape[axis]:
        raise misfit(node, operands, f"there are no {k} elements along axis {axis}")
    return (*x.shape[:axis], k, *x.shape[axis + 1 :]), "int64"


def gather(node: Node, operands: Sequence[Value]) -> Result:
    """The indices' dimensions take the place of the axis."""
    x, indices = operands
    axis = _axis(node, operands)
    _check_indices(node, operands)
    return (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype


def gather_elements(node: Node, operands: Sequence[Value]) -> Result:
    """The indices' shape, which is not larger than the operand's but along the axis."""
    x, indices = operands
    axis = _axis(node, operands)
    _check_indices(node, operands)
    _check_inside(node, operands, indices.shape, axis)
    return indices.shape, x.dtype


def _check_inside(node: Node, operands: Sequence[Value], shape: tuple[int, ...], axis: int) -> None:
    whole = operands[0].shape
    fits = len(shape) == len(whole) and all(
        inner <= outer for place, (inner, outer) in enumerate(zip(shape, whole, strict=True)) if place != axis
    )
    if not fits:
        raise misfit(node, operands, f"the indices may be larger than the first operand along axis {axis} alone")


def gather_nd(node: Node, operands: Sequence[Value]) -> Result:
    """A slice of the operand for each row, the last dimension, of the indices."""
    x, indices = operands
    batch = node.integer("batch_dims")
    _check_indices(node, operands)
    alike = x.shape[:batch] == indices.shape[:batch] and batch < len(indices.shape)
    if not alike or batch + indices.shape[-1] > len(x.shape):
        raise misfit(node, operands, "the indices name more dimensions than there are, or the batches differ")
    return (*indices.shape[:-1], *x.shape[batch + indices.shape[-1] :]), x.dtype


def scatter_elements(node: Node, operands: Sequence[Value]) -> Result:
    """The first operand's shape; the updates have the shape of the indices."""
    x, indices, updates = operands
    axis = _axis(node, operands)
    _check_indices(node, operands)
    _check_inside(node, operands, indices.shape, axis)
    if updates.shape != indices.shape or updates.dtype != x.dtype or node.text("reduction") not in REDUCTIONS:
        raise misfit(node, operands, f"needs an update for each index, and one of the reductions {REDUCTIONS}")
    return x.shape, x.dtype


def scatter_nd(node: Node, operands: Sequence[Value]) -> Result:
    """The first operand's shape; the updates are a slice of it for each row of the indices."""
    x, indices, updates = operands
    _check_indices(node, operands)
    named = indices.shape[-1] if indices.shape else len(x.shape) + 1
    if named > len(x.shape) or updates.shape != (*indices.shape[:-1], *x.shape[named:]) or updates.dtype != x.dtype:
        raise misfit(node, operands, "needs a slice of the first operand's type for each row of indices")
    if node.text("reduction") not in REDUCTIONS:
        raise misfit(node, operands, f"the reduction is none of {REDUCTIONS}")
    return x.shape, x.dtype
