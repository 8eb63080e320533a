"""Reads the declarations of a value by an ONNX model and its caller, as a `Param`; undeclared parts are None.

Declared types of outputs must match the nodes; wrong shapes only cause warnings.
"""

import logging
from collections.abc import Iterable, Sequence

import onnx

from retune.compiler.core.errors import ModelFormatError
from retune.compiler.core.input_shapes import Size
from retune.compiler.frontend.model_file import inferred_graph, without_large_weights
from retune.compiler.frontend.ops.elementwise import DTYPES
from retune.compiler.graph.region import OPTIONAL, OPTIONAL_SEQUENCE, SEQUENCE, TENSOR, Dimension, Param

_FORMS = {
    (): TENSOR,
    ("sequence_type",): SEQUENCE,
    ("optional_type",): OPTIONAL,
    ("optional_type", "sequence_type"): OPTIONAL_SEQUENCE,
}
_MADE_UP = "unk__"
"""Prefix of the symbols that ONNX gives to unknown dimensions."""
_log = logging.getLogger(__name__)


def fed_inputs(model: onnx.ModelProto, declared: Iterable[str]) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller feeds: those that are not weights. `declared` are the names that a caller declares.

    Raises: ModelFormatError when one of these is no input, or an input is neither a tensor, nor a sequence of tensors,
    nor an optional of either.
    """
    # Before IR version 4, initializers were listed among the inputs too.
    weights = {tensor.name for tensor in model.graph.initializer}
    fed = [entry for entry in model.graph.input if entry.name not in weights]
    names = [entry.name for entry in fed]
    unknown = sorted(map(str, set(declared) - set(names)))
    if unknown:
        raise ModelFormatError(f"a shape is given for {', '.join(unknown)}, but the inputs are {', '.join(names)}")
    for entry in fed:
        if form_of(entry) is None:
            raise ModelFormatError(f"input {entry.name!r} is no tensor, and no sequence of tensors or optional value")
    return fed


def form_of(entry: onnx.ValueInfoProto) -> str | None:
    """The form of a value, `TENSOR` if its type is not declared; None for a form that programs lack, such as a map."""
    nested = []
    kind = entry.type
    while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
        nested.append(kind.WhichOneof("value"))
        kind = kind.sequence_type.elem_type if nested[-1] == "sequence_type" else kind.optional_type.elem_type
    if kind.WhichOneof("value") not in (None, "tensor_type"):
        return None
    return _FORMS.get(tuple(nested))


def tensor_type(entry: onnx.ValueInfoProto) -> onnx.TypeProto.Tensor:
    """The type of a tensor, or of the tensors of a sequence or an optional value."""
    kind = entry.type
    while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
        is_sequence = kind.WhichOneof("value") == "sequence_type"
        kind = kind.sequence_type.elem_type if is_sequence else kind.optional_type.elem_type
    return kind.tensor_type


def check_outputs(model: onnx.ModelProto, computed: Sequence[Param]) -> None:
    """Check a model's declarations of its outputs against its nodes, where both are known; symbols match any number.
    Wrong shapes only cause warnings, as in other runtimes: the nodes count.

    ONNX itself infers other extents for some pools and transforms than any runtime: a file may repeat these.
    Raises: ModelFormatError that names the first output with another type.
    """
    for index, (entry, result) in enumerate(zip(model.graph.output, computed, strict=True)):
        declared = _declaration(entry)
        computes = Param(entry.name, result.dtype, result.dims, result.form)
        if result.dtype is not None and declared.dtype not in (None, result.dtype):
            raise ModelFormatError(
                f"the output {declared} is declared so, but the nodes compute {computes}: "
                "correct or clear its declaration"
            )
        if not _are_compatible(declared, result) and not _repeats(declared, _infer_type(model, index)):
            _log.warning("the output %s is declared so, but the nodes compute %s", declared, computes)


def _are_compatible(declared: Param, result: Param) -> bool:
    """Whether the dimensions of both could belong to one value."""
    if declared.dims is None or result.dims is None:
        return True
    pairs = zip(declared.dims, result.dims, strict=False)
    differ = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
    return len(declared.dims) == len(result.dims) and not differ


def _repeats(declared: Param, inferred: Param) -> bool:
    """Whether all numbers of `declared` equal those of `inferred`."""
    pairs = zip(declared.dims or (), inferred.dims or (), strict=False)
    return len(declared.dims or ()) == len(inferred.dims or ()) and all(a == b for a, b in pairs if isinstance(a, int))


def _infer_type(model: onnx.ModelProto, index: int) -> Param:
    """ONNX's inferred type of an output, without the file's declarations."""
    light = onnx.ModelProto()
    light.CopyFrom(without_large_weights(model))
    del light.graph.value_info[:]
    return param_of(inferred_graph(light).output[index])


def _declaration(entry: onnx.ValueInfoProto) -> Param:
    """A model's declaration of an output, including element types that we lack."""
    if form_of(entry) is None:
        return Param(entry.name, entry.type.WhichOneof("value"))
    kind = tensor_type(entry).elem_type
    known = kind in onnx.TensorProto.DataType.values()
    dtype = onnx.TensorProto.DataType.Name(kind).lower() if known else f"type {kind}"
    param = param_of(entry)
    return Param(entry.name, param.dtype or (dtype if kind else None), param.dims, param.form)


def param_of(entry: onnx.ValueInfoProto) -> Param:
    """The static type of a value; an element type that we lack counts as unknown."""
    tensor, form = tensor_type(entry), form_of(entry) or TENSOR
    known = tensor.elem_type in onnx.TensorProto.DataType.values() and tensor.elem_type != onnx.TensorProto.UNDEFINED
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name if known else None
    dims = tuple(map(_dimension, tensor.shape.dim)) if tensor.HasField("shape") and form == TENSOR else None
    return Param(entry.name, dtype if dtype in DTYPES else None, dims, form)


def _dimension(dimension: onnx.TensorShapeProto.Dimension) -> Dimension:
    if dimension.HasField("dim_value"):
        return dimension.dim_value if dimension.dim_value >= 0 else None
    symbol = dimension.dim_param
    # Exporters write `?` and `-1` for any number, possibly different ones.
    is_name = any(letter.isalpha() for letter in symbol) and not symbol.startswith(_MADE_UP)
    return symbol if is_name else None


def narrow_dims(param: Param, dims: Sequence[Dimension]) -> Param:
    """The param with the caller's dimensions `dims`.

    Raises: ModelFormatError when they contradict the model.
    """
    declared = param.dims
    if param.form != TENSOR:
        raise ModelFormatError(f"a shape is given for the input {param}: shapes are for tensors")
    fits = declared is None or len(declared) == len(dims)
    for wanted, extent in zip(declared or (), dims, strict=False):
        fits = fits and (not isinstance(wanted, int) or wanted == extent)
    if not fits:
        shape = ", ".join("?" if dim is None else str(dim) for dim in dims)
        raise ModelFormatError(f"the shape ({shape}) does not fit the input {param}")
    return Param(param.name, param.dtype, tuple(dims))


def declare_sizes(
    param: Param, shape: Sequence[Dimension | Size], ranges: dict[str, tuple[int, int]]
) -> tuple[Dimension, ...]:
    """The dimensions that `shape` gives an input, whose sizes become symbols; `ranges` takes those of symbols.

    Raises: ModelFormatError when a symbol has two ranges, the model has a number there, or another rank.
    """
    if shape == (Size(),) and param.dims is not None:
        return param.dims  # `NAME=?`: as the model has it
    if len(shape) != len(shape if param.dims is None else param.dims):
        raise ModelFormatError(f"a shape of rank {len(shape)} does not fit the input {param}")
    dims: list[Dimension] = []
    for axis, extent in enumerate(shape):
        if not isinstance(extent, Size):
            dims.append(extent)
            continue
        known = None if param.dims is None else param.dims[axis]
        if isinstance(known, int):
            raise ModelFormatError(f"dimension {axis} of {param.name} is {known} in the model, and no range")
        dim = extent.symbol or (known if isinstance(known, str) else f"{param.name}_{axis}")
        dims.append(dim)
        bounds = extent.range
        if bounds is not None and ranges.setdefault(dim, bounds) != bounds:
            (low, high), (other, last) = ranges[dim], bounds
            raise ModelFormatError(
                f"{dim} is {low}..{high}, and {other}..{last} in dimension {axis} of {param.name}: these must be equal"
            )
    return tuple(dims)


def write_dims(entry: onnx.ValueInfoProto, dims: Sequence[Dimension]) -> None:
    shape = entry.type.tensor_type.shape
    shape.Clear()
    for dim in dims:
        written = shape.dim.add()
        if isinstance(dim, int):
            written.dim_value = dim
        elif dim is not None:
            written.dim_param = dim
    if not dims:
        # An empty shape is a scalar, and no shape an unknown rank: protobuf writes an empty message only on request.
        entry.type.tensor_type.shape.SetInParent()
