"""Reads what an ONNX model and its caller declare of a value, as a `Param`; what is not declared is None.

Declared types of outputs must be those that the nodes compute; wrong shapes are warned of.
"""

import logging
from collections.abc import Iterable, Sequence

import onnx

from retune.compiler.errors import ModelFormatError
from retune.compiler.frontend.onnx.elementwise import DTYPES
from retune.compiler.frontend.onnx.model_file import inferred_graph, without_large_weights
from retune.compiler.graph.region import Dimension, Param

_MADE_UP = "unk__"
"""How the symbols begin that ONNX gives to dimensions of which it knows nothing."""
_log = logging.getLogger(__name__)


def fed_inputs(model: onnx.ModelProto, given: Iterable[str]) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller feeds: those that are no weights, all of them tensors. `given` are names the caller says
    something of.

    Raises: ModelFormatError when one of these is no input, or an input is no tensor.
    """
    # Before form 4 of the file, initializers were listed among the inputs too.
    weights = {tensor.name for tensor in model.graph.initializer}
    fed = [entry for entry in model.graph.input if entry.name not in weights]
    names = [entry.name for entry in fed]
    unknown = sorted(map(str, set(given) - set(names)))
    if unknown:
        raise ModelFormatError(f"a shape is given for {', '.join(unknown)}, but the inputs are {', '.join(names)}")
    for entry in fed:
        if not entry.type.HasField("tensor_type"):
            raise ModelFormatError(f"input {entry.name!r} is not a tensor")
    return fed


def check_outputs(model: onnx.ModelProto, computed: Sequence[Param]) -> None:
    """Check that a model declares its outputs as its nodes compute them, where both are known; symbols fit any number.
    Wrong shapes are only warned of, as other runtimes do: what the nodes compute counts.

    ONNX itself gives other extents to some pools and transforms than any runtime does: a file that repeats what ONNX
    says of it is not at fault.
    Raises: ModelFormatError that names the first output with another type.
    """
    for place, (entry, found) in enumerate(zip(model.graph.output, computed, strict=True)):
        said = _declared(entry)
        computes = Param(entry.name, found.dtype, found.dims)
        if found.dtype is not None and said.dtype not in (None, found.dtype):
            raise ModelFormatError(
                f"the output {said} is declared so, but the nodes compute {computes}: correct or clear its declaration"
            )
        if not _fit(said, found) and not _repeats(said, _inferred(model, place)):
            _log.warning("the output %s is declared so, but the nodes compute %s", said, computes)


def _fit(said: Param, found: Param) -> bool:
    """Whether the dimensions of both could be those of one value."""
    if said.dims is None or found.dims is None:
        return True
    pairs = zip(said.dims, found.dims, strict=False)
    differ = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
    return len(said.dims) == len(found.dims) and not differ


def _repeats(said: Param, inferred: Param) -> bool:
    """Whether all numbers of one are those of the other."""
    pairs = zip(said.dims or (), inferred.dims or (), strict=False)
    return len(said.dims or ()) == len(inferred.dims or ()) and all(a == b for a, b in pairs if isinstance(a, int))


def _inferred(model: onnx.ModelProto, place: int) -> Param:
    """What ONNX infers of an output, whatever the file says of it and of the values before it."""
    light = onnx.ModelProto()
    light.CopyFrom(without_large_weights(model))
    del light.graph.value_info[:]
    return param_of(inferred_graph(light).output[place])


def _declared(entry: onnx.ValueInfoProto) -> Param:
    """What a model says of an output, element types that we have not included."""
    if entry.type.HasField("tensor_type"):
        kind = entry.type.tensor_type.elem_type
        known = kind in onnx.TensorProto.DataType.values()
        dtype = onnx.TensorProto.DataType.Name(kind).lower() if known else f"type {kind}"
        param = param_of(entry)
        return Param(entry.name, param.dtype or (dtype if kind else None), param.dims)
    return Param(entry.name, entry.type.WhichOneof("value"))


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
    symbol = dimension.dim_param
    # Exporters write `?` and `-1` for any number, each time for another one.
    is_name = any(letter.isalpha() for letter in symbol) and not symbol.startswith(_MADE_UP)
    return symbol if is_name else None


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
        # An empty shape is a scalar, and no shape an unknown rank: protobuf writes an empty message only if it is told
        # to.
        entry.type.tensor_type.shape.SetInParent()
