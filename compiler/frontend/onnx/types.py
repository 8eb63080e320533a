"""In: what an ONNX model says of a value, and what a caller says. Out: a `Param`. Always: what nothing says is None."""

from collections.abc import Sequence

import onnx

from compiler.errors import ModelFormatError
from compiler.frontend.onnx.elementwise import DTYPES
from compiler.graph.region import Dimension, Param

_MADE_UP = "unk__"
"""How the symbols begin that ONNX gives to dimensions of which it knows nothing."""


def param_of(entry: onnx.ValueInfoProto) -> Param:
    """What is known of a value; an element type that we have not counts as unknown."""
    if not entry.type.HasField("tensor_type"):
        return Param(entry.name, None)
    tensor = entry.type.tensor_type
    known = tensor.elem_type in onnx.TensorProto.DataType.values() and tensor.elem_type != onnx.TensorProto.UNDEFINED
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name if known else None
    dims = tuple(map(_dimension, tensor.shape.dim)) if tensor.HasField("shape") else None
    return Param(entry.name, dtype if dtype in DTYPES else None, dims)


def _dimension(dimension: onnx.TensorShapeProto.Dimension) -> Dimension:
    if dimension.HasField("dim_value"):
        return dimension.dim_value if dimension.dim_value >= 0 else None
    made_up = dimension.dim_param.startswith(_MADE_UP)
    return None if made_up else dimension.dim_param or None


def narrowed(param: Param, given: Sequence[Dimension]) -> Param:
    """The param with the dimensions that the caller gives it.

    Raises: ModelFormatError when the model says something else.
    """
    declared = param.dims
    fits = declared is None or len(declared) == len(given)
    for wanted, extent in zip(declared or (), given, strict=False):
        fits = fits and (not isinstance(wanted, int) or wanted == extent)
    if not fits:
        raise ModelFormatError(f"the shape {list(given)} does not fit the input {param}")
    return Param(param.name, param.dtype, tuple(given))


def write_dims(entry: onnx.ValueInfoProto, dims: Sequence[Dimension]) -> None:
    """Make the dimensions those of the entry."""
    shape = entry.type.tensor_type.shape
    shape.Clear()
    for dim in dims:
        written = shape.dim.add()
        if isinstance(dim, int):
            written.dim_value = dim
        elif dim is not None:
            written.dim_param = dim
    if not dims:
        entry.type.tensor_type.shape.SetInParent()
