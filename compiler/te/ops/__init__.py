"""In: a graph operation. Out: the tensor that computes it.

Always: the operator library is written in tensor expressions alone.

`LOWERINGS` is the table operator name -> function; a new operator is one more row.
"""

from collections.abc import Callable, Mapping

from retune.compiler.errors import DefinitionError
from retune.compiler.te.ops import (
    conv,
    conv_transpose,
    elementwise,
    matmul,
    norm,
    places,
    pool,
    reduce,
    shape,
    winograd,
)
from retune.compiler.te.ops.call import OpCall
from retune.compiler.te.tensor import Tensor

Lowering = Callable[[OpCall], Tensor]

LOWERINGS: Mapping[str, Lowering] = {
    **dict.fromkeys(sorted(elementwise.NAMES), elementwise.elementwise),
    **dict.fromkeys(("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"), reduce.reduction),
    "conv2d": conv.convolution,
    "conv3d": conv.convolution,
    "conv_transpose2d": conv_transpose.conv_transpose2d,
    "conv_phases2d": conv_transpose.conv_phases2d,
    "winograd_conv2d": winograd.winograd,
    "dense": matmul.dense,
    "batch_matmul": matmul.batch_matmul,
    "qconv2d": conv.convolution,
    "qdense": matmul.dense,
    "qbatch_matmul": matmul.batch_matmul,
    "max_pool2d": pool.max_pool2d,
    "avg_pool2d": pool.avg_pool2d,
    "contract": matmul.contract,
    "softmax": reduce.softmax,
    "log_softmax": reduce.log_softmax,
    "normalize": norm.normalize,
    **dict.fromkeys(("arg_max", "arg_min"), places.arg_reduction),
    "top_k": places.top_k,
    "gather": places.gather,
    "gather_elements": places.gather_elements,
    "gather_nd": places.gather_nd,
    "scatter_elements": places.scatter_elements,
    "scatter_nd": places.scatter_nd,
    "reshape": shape.reshape,
    "transpose": shape.transpose,
    "concat": shape.concat,
    "slice": shape.slice_,
    "pad": shape.pad,
    "broadcast_to": shape.broadcast_to,
}


def lower_op(call: OpCall) -> Tensor:
    """The tensor that computes `call`.

    Raises: DefinitionError when no tensor expression is known for the operator.
    """
    lowering = LOWERINGS.get(call.op)
    if lowering is None:
        raise DefinitionError(
            f"{call.name}: no tensor expression for {call.op!r}; known operators: {sorted(LOWERINGS)}"
        )
    return lowering(call)


__all__ = ["LOWERINGS", "Lowering", "OpCall", "lower_op"]
