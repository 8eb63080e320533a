"""Reads ONNX files: a path, bytes or a `ModelProto` in, a `ModelProto` with its weights out.

A broken file raises a ModelFormatError of one sentence.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from math import prod
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor, uses_external_data

from retune.compiler.core.dtype import Array
from retune.compiler.core.errors import ModelFormatError

_log = logging.getLogger(__name__)

OLDEST_OPSET = 11
# Tables of shapes and axes, which ONNX's inference reads, are far smaller; weights that cost time to copy are larger.
_LARGE_BYTES = 1 << 16
STANDARD_DOMAINS = ("", "ai.onnx")
CONTRIBUTED_DOMAIN = "com.microsoft"
"""The domain of the operators that ONNX Runtime adds."""
_TEXT_FORMS = (".json", ".onnxjson", ".onnxtext", ".onnxtxt", ".pbtxt", ".prototxt", ".textproto")
"""Suffixes of string forms of `onnx.save`."""
_TEXT = re.compile(rb'\s*(ir_version:|<\s*ir_version:|\{\s*"ir_?[vV]ersion")')
"""The beginning of a string form."""
_REMARKS = ("doc_string", "metadata_props", "producer_name", "producer_version")
MOST_NODES = 200_000
"""Most nodes of a model with inlined functions and unrolled loops: more is too large to compile."""


def read_model(source: str | Path | bytes | onnx.ModelProto, *, lazily: bool = False) -> onnx.ModelProto:
    """Read a model, with external weights from beside the file. `lazily` leaves large weights in their file, for
    `tensor_array`, unless their operator set needs conversion.

    Raises: ModelFormatError when there is no such file, or it is not an ONNX model with a graph.
    """
    if isinstance(source, onnx.ModelProto):
        _check_names(source)
        _check_loaded(source)
        return source
    label = "these bytes" if isinstance(source, bytes) else str(source)
    with _reading(label, source):
        if isinstance(source, bytes):
            model = onnx.load_model_from_string(source)
        else:  # for other suffixes onnx would choose a string form, whose parser raises errors of any kind
            model = onnx.load_model(label, "protobuf", load_external_data=False)
        _check_names(model)
        if isinstance(source, bytes):
            _check_loaded(model)
        else:
            _load_weights(model, Path(label).parent, lazily=lazily and version_of(model) >= OLDEST_OPSET)
    if not model.graph.node and not model.graph.output:
        raise ModelFormatError(f"{label} is not an ONNX model: it has no graph")
    if not model.opset_import:
        raise ModelFormatError(f"{label} is not an ONNX model: it names no operator set")
    return model


@contextmanager
def _reading(label: str, source: str | Path | bytes) -> Iterator[None]:
    """Raise a ModelFormatError for an unreadable file."""
    try:
        yield
    except FileNotFoundError as error:
        missing = error.filename or label
        raise ModelFormatError(f"{label}: there is no file {missing}") from None
    except OSError as error:
        raise ModelFormatError(f"{label}: cannot be read: {error.strerror or error}") from None
    except (onnx.checker.ValidationError, RuntimeError) as error:  # RuntimeError for external data with an endless name
        raise ModelFormatError(f"{label}: {_sentence(error):.300}") from None
    except (DecodeError, UnicodeDecodeError):
        raise ModelFormatError(f"{label} is not an ONNX model in binary form{_advice(source)}") from None
    except ValueError as error:  # such as a truncated file of weights
        raise ModelFormatError(f"{label} is not an ONNX model, or is damaged: {_sentence(error)}") from None


def _check_loaded(model: onnx.ModelProto) -> None:
    """Reject weights in a file that `read_model` did not read: nothing says in which folder it is."""
    for tensor in model.graph.initializer:
        keys = {entry.key: entry.value for entry in tensor.external_data}
        if uses_external_data(tensor) and "basepath" not in keys:
            raise ModelFormatError(
                f"the weight {tensor.name!r} is not loaded from {keys.get('location')!r}: give the path of the model, "
                "or load it with its external data"
            )


def _load_weights(model: onnx.ModelProto, folder: Path, *, lazily: bool) -> None:
    """Load external weights; `lazily` only small ones, whose values may decide shapes."""
    tensors = [tensor for tensor in model.graph.initializer if lazily and uses_external_data(tensor)]
    large = [tensor for tensor in tensors if _bytes(tensor) > _LARGE_BYTES]
    for tensor in large:
        tensor.data_location = onnx.TensorProto.DEFAULT
    onnx.load_external_data_for_model(model, str(folder))
    for tensor in large:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="basepath", value=str(folder))
        info = ExternalDataInfo(tensor)
        if (folder / info.location).stat().st_size < (info.offset or 0) + (info.length or 0):
            raise ValueError(f"the weight {tensor.name!r} lies behind the end of {info.location}")


def _bytes(tensor: onnx.TensorProto) -> int:
    count: int = prod(tensor.dims)
    return count * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def tensor_array(tensor: onnx.TensorProto) -> Array:
    """The elements of a tensor, possibly still in a file. Raises: ModelFormatError when the file cannot be read."""
    if not uses_external_data(tensor):
        return onnx.numpy_helper.to_array(tensor)
    folder = next(entry.value for entry in tensor.external_data if entry.key == "basepath")
    loaded = onnx.TensorProto()
    loaded.CopyFrom(tensor)  # protobuf frees no part of a model before the model
    with _reading(folder, b""):
        load_external_data_for_tensor(loaded, folder)
    return onnx.numpy_helper.to_array(loaded)


def _advice(source: str | Path | bytes) -> str:
    """How to convert a file with the suffix or beginning of a string form."""
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    if not _TEXT.match(data) and (isinstance(source, bytes) or not str(source).endswith(_TEXT_FORMS)):
        return ""
    form = {b"{": "json", b"<": "onnxtxt"}.get(data.lstrip()[:1], "textproto")
    return f": text forms are not read; onnx.save(onnx.load(..., '{form}'), 'model.onnx') writes the binary one"


def _check_names(model: onnx.ModelProto) -> None:
    """Reject strings that are not UTF-8: protobuf returns them as bytes. Raises: ModelFormatError."""
    stack: list[onnx.ModelProto] = [model]
    while stack:
        message = stack.pop()
        if isinstance(message, onnx.TensorProto):  # copying it would copy its data
            message = onnx.TensorProto(name=message.name) if isinstance(message.name, str) else message
        for field, value in message.ListFields():
            if field.type in (field.TYPE_STRING, field.TYPE_MESSAGE) and field.name not in _REMARKS:
                values = [value] if isinstance(value, str | bytes | Message) else value
                stack.extend(item for item in values if isinstance(item, Message))
                for item in values:
                    if isinstance(item, bytes):
                        raise ModelFormatError(f"the {field.name} {item[:80]!r} is not UTF-8: export the model again")


def opset_of(model: onnx.ModelProto) -> int:
    """The version of the standard operators that the model uses.

    Raises: ModelFormatError when it is older than we convert, or newer than the installed ONNX, which then cannot
    define its operators.
    """
    version = version_of(model)
    newest = onnx.defs.onnx_opset_version()
    if version > newest:
        raise ModelFormatError(
            f"model {model.graph.name or 'without a name'} uses operator set {version}; the newest that onnx "
            f"{onnx.__version__} knows is {newest}: install a newer onnx, or export the model for {newest}"
        )
    if version < OLDEST_OPSET:
        raise ModelFormatError(
            f"model {model.graph.name or 'without a name'} uses operator set {version}; the oldest supported is "
            f"{OLDEST_OPSET}: export it again, or convert it with onnx.version_converter"
        )
    return version


def version_of(model: onnx.ModelProto) -> int:
    """The version of the standard operators, supported or not; 0 if none is named."""
    return int(max((entry.version for entry in model.opset_import if entry.domain in STANDARD_DOMAINS), default=0))


def check_model(model: onnx.ModelProto) -> None:
    """Let ONNX check the model, with large weights only declared: otherwise it would copy them all, twice.

    Raises: ModelFormatError with its first complaint.
    """
    try:
        onnx.checker.check_model(without_large_weights(model))
    except onnx.checker.ValidationError as error:
        # PyTorch exported its first version, deprecated later because of the shape of its factors.
        if "GroupNormalization is deprecated" in str(error):
            return
        raise ModelFormatError(f"model {model.graph.name} is not valid ONNX: {_sentence(error)}") from None
    except ValueError:
        return  # above the size of a protocol message ONNX cannot check it in memory


def inferred_graph(model: onnx.ModelProto) -> onnx.GraphProto:
    """The model's graph with ONNX's inferred types, or without if ONNX fails. Changes `model`."""
    outputs = {entry.name for entry in model.graph.output}
    others = [entry for entry in model.graph.value_info if entry.name not in outputs]
    del model.graph.value_info[:]
    model.graph.value_info.extend(others)
    for entry in model.graph.output:
        entry.ClearField("type")
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception as error:  # any error of its C++ code; missing shapes cost regions, and decide nothing
        _log.info("no shapes are inferred: %s", error)
        return model.graph


def without_large_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with inputs in place of large initializers, or itself without any."""
    large = {
        tensor.name
        for tensor in model.graph.initializer
        if uses_external_data(tensor) or len(tensor.raw_data) > _LARGE_BYTES
    }
    if not large:
        return model
    light = _without_initializers(model)
    declared = {entry.name for entry in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in large:
            light.graph.initializer.append(tensor)
        elif tensor.name not in declared:
            entry = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            light.graph.input.append(entry)
    return light


def with_external_weights(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[onnx.TensorProto]]:
    """The model with large initializers one after another in a file that is yet to be named, and these initializers."""
    light, large, offset = _without_initializers(model), [], 0
    for tensor in model.graph.initializer:
        length = len(tensor.raw_data)
        if length <= _LARGE_BYTES:
            light.graph.initializer.append(tensor)
            continue
        large.append(tensor)
        entry = light.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        entry.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("offset", offset), ("length", length)):
            entry.external_data.add(key=key, value=str(value))
        offset += length
    return light, large


def _without_initializers(model: onnx.ModelProto) -> onnx.ModelProto:
    light = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            _copy(light, field.name, value)
    for field, value in model.graph.ListFields():
        if field.name != "initializer":
            _copy(light.graph, field.name, value)
    return light


def _copy(message: object, field: str, value: object) -> None:
    """Set a field of a protocol message: a plain value, a message, or a list of either."""
    if isinstance(value, int | float | str | bytes):
        setattr(message, field, value)
    elif hasattr(value, "CopyFrom"):
        getattr(message, field).CopyFrom(value)
    else:
        getattr(message, field).extend(value)


def is_standard(domain: str) -> bool:
    return domain in STANDARD_DOMAINS


def operator_of(node: onnx.NodeProto) -> str:
    """The operator's name, behind its domain unless it is a standard operator."""
    return str(node.op_type) if is_standard(node.domain) else f"{node.domain}.{node.op_type}"


def name_of(node: onnx.NodeProto) -> str:
    """The node's name, or its first result's if the exporter gave none."""
    return node.name or next(chain(node.output), "") or node.op_type


def _sentence(error: Exception) -> str:
    """ONNX's text in one line, without the dump of the node that follows an empty line."""
    text = " ".join(str(error).strip().partition("\n\n")[0].split())
    return f"{text:.500}" or type(error).__name__
