"""Tensors of KServe's Open Inference Protocol (V2): requests to arrays, and arrays to responses.

A tensor is a JSON list, or bytes behind the JSON object as the binary extension has it: row-major, little-endian.
Source: the V2 protocol and its binary tensor data extension, as Triton Inference Server documents them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import orjson

from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.artifact import Array
from retune.flows.serving.model import MOST_ELEMENTS, TensorSpec

DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64", "bfloat16": "BF16",
}  # fmt: skip
"""The protocol's name of every type."""

_ONLY_BINARY = ("float16", "bfloat16")
"""Types that the protocol has no JSON form of."""

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The HTTP header with the bytes of the JSON object, where bytes of tensors follow it."""

_MOST_DIGITS = 18
"""Digits of that header: Python refuses thousands."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request: arrays by input, the outputs that are wanted, whether each as bytes, and the id to repeat."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, bool]
    id: str


def parse_request(
    body: bytes, header: str | None, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> Request:
    """Read the body of a request; `header` is the value of `HEADER_LENGTH`.

    Raises: OptionError that names the input or field at fault.
    """
    length = len(body) if header is None else _length(header, len(body))
    message = _object(body[:length])
    given = message.get("inputs")
    if not isinstance(given, list) or not all(isinstance(tensor, dict) for tensor in given):
        raise OptionError("the request needs `inputs`, a list of objects with name, shape, datatype and data")
    specs = {spec.name: spec for spec in inputs}
    arrays: dict[str, Array] = {}
    start = length
    for tensor in given:
        name = tensor.get("name")
        if not isinstance(name, str) or name not in specs:
            raise OptionError(f"there is no input {name!r}; the inputs are {', '.join(specs)}")
        if name in arrays:
            raise OptionError(f"input {name}: it is given twice")
        size = _parameters(tensor).get("binary_data_size")
        if size is not None:
            if not isinstance(size, int) or size < 0 or start + size > len(body):
                raise OptionError(f"input {name}: binary_data_size is {size!r}, but {len(body) - start} bytes are left")
            arrays[name] = _from_bytes(specs[name], tensor, body[start : start + size])
            start += size
        else:
            arrays[name] = _from_list(specs[name], tensor)
    if missing := [name for name in specs if name not in arrays]:
        raise OptionError(f"no value for {', '.join(missing)}; the inputs are {', '.join(specs)}")
    if start != len(body):
        raise OptionError(f"{len(body) - start} bytes follow the last tensor")
    return Request(arrays, _wanted_outputs(message, outputs), str(message.get("id") or ""))


def write_response(
    about: Mapping[str, str], outputs: Mapping[str, Array], binary: Mapping[str, bool]
) -> tuple[bytes, int]:
    """The body of a response, and the bytes of its JSON object; `about` has the fields that name model and request.

    Raises: OptionError for a type that has no JSON form.
    """
    listed, tail = [], []
    for name, array in outputs.items():
        tensor: dict[str, object] = {"name": name, "shape": list(array.shape), "datatype": DATATYPES[array.dtype.name]}
        if binary[name]:
            data = np.ascontiguousarray(array).tobytes()
            tensor["parameters"] = {"binary_data_size": len(data)}
            tail.append(data)
        elif array.dtype.name in _ONLY_BINARY:
            raise OptionError(f"output {name}: {DATATYPES[array.dtype.name]} has no JSON form: ask for binary_data")
        else:
            tensor["data"] = np.ascontiguousarray(array).ravel()
        listed.append(tensor)
    # a number that is not finite becomes null
    head = orjson.dumps({**about, "outputs": listed}, option=orjson.OPT_SERIALIZE_NUMPY)
    return b"".join((head, *tail)), len(head)


def _length(header: str, size: int) -> int:
    if not header.isdecimal() or len(header) > _MOST_DIGITS or int(header) > size:
        raise OptionError(f"{HEADER_LENGTH} is {header[:_MOST_DIGITS]!r}, but the body has {size} bytes")
    return int(header)


def _object(text: bytes) -> dict[str, object]:
    try:
        message = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise OptionError(f"the request is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise OptionError("the request must be a JSON object")
    return message


def _parameters(tensor: Mapping[str, object]) -> Mapping[str, object]:
    parameters = tensor.get("parameters", {})
    if not isinstance(parameters, dict):
        raise OptionError("`parameters` must be an object")
    return parameters


def _shape(spec: TensorSpec, tensor: Mapping[str, object]) -> tuple[int, ...]:
    """The shape that is given. Raises: OptionError for another type or rank, or a shape larger than the input's."""
    if tensor.get("datatype") != DATATYPES[spec.dtype]:
        raise OptionError(
            f"input {spec.name}: the datatype must be {DATATYPES[spec.dtype]}, not {tensor.get('datatype')!r}"
        )
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(type(extent) is int and extent >= 0 for extent in shape):
        raise OptionError(f"input {spec.name}: the shape must be a list of integers, such as {list(spec.shape)}")
    # NumPy refuses more than 64 dimensions, and extents beyond the range of addresses.
    if len(shape) != len(spec.shape) or any(
        extent > (MOST_ELEMENTS if most is None else most) for extent, most in zip(shape, spec.most, strict=True)
    ):
        most = f" of at most {list(spec.most)}" if spec.most != spec.shape else ""
        raise OptionError(f"input {spec.name}: the shape must be {list(spec.shape)}{most}, not {shape!s:.100}")
    return tuple(shape)


def _from_bytes(spec: TensorSpec, tensor: Mapping[str, object], data: bytes) -> Array:
    shape, dtype = _shape(spec, tensor), np.dtype(spec.dtype)
    if prod(shape) * dtype.itemsize != len(data):
        raise OptionError(
            f"input {spec.name}: {list(shape)} takes {prod(shape) * dtype.itemsize} bytes, not {len(data)}"
        )
    # A view without a copy: `set_input` copies it into the executor's own, aligned memory.
    return np.frombuffer(data, dtype).reshape(shape)


def _from_list(spec: TensorSpec, tensor: Mapping[str, object]) -> Array:
    shape = _shape(spec, tensor)
    if spec.dtype in _ONLY_BINARY:
        raise OptionError(f"input {spec.name}: {DATATYPES[spec.dtype]} has no JSON form: send it as binary data")
    data = tensor.get("data")
    if not isinstance(data, list):
        raise OptionError(f"input {spec.name}: there is no data, a list of numbers")
    wanted = DATATYPES[spec.dtype]
    try:
        plain = np.asarray(data)
    except ValueError as error:  # rows of different lengths
        raise OptionError(
            f"input {spec.name}: the data must be one list of numbers, or rows of equal length"
        ) from error
    if plain.size and plain.dtype.kind not in _KINDS[np.dtype(spec.dtype).kind]:
        kind = _WORDS.get(plain.dtype.kind, "null, objects or integers beyond 64 bits")
        raise OptionError(f"input {spec.name}: the data are {kind}, where {wanted} is expected")
    try:
        with np.errstate(over="raise"):  # NumPy makes infinity of a float that is too large, and refuses an integer
            array = plain.astype(spec.dtype) if plain.dtype.kind == "f" else np.asarray(data, spec.dtype)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise OptionError(f"input {spec.name}: a number is outside the range of {wanted}") from error
    if array.size != prod(shape):
        raise OptionError(f"input {spec.name}: {list(shape)} takes {prod(shape)} numbers, not {array.size}")
    return array.reshape(shape)


_KINDS = {"b": "b", "i": "i", "u": "iu", "f": "iuf"}
"""Kinds of NumPy's types that JSON numbers may have, by that of the input."""

_WORDS = {"U": "BYTES (strings)", "b": "BOOL", "i": "integers", "u": "integers", "f": "numbers with a fraction"}
"""JSON values of a request in the protocol's words, by the kind of NumPy's type."""


def _wanted_outputs(message: Mapping[str, object], outputs: Sequence[TensorSpec]) -> dict[str, bool]:
    """The outputs that are asked for, all unless said, and whether each as bytes."""
    by_default = bool(_parameters(message).get("binary_data_output", False))
    known = [spec.name for spec in outputs]
    asked = message.get("outputs")
    if asked is None:
        return dict.fromkeys(known, by_default)
    if not isinstance(asked, list) or not all(isinstance(tensor, dict) for tensor in asked):
        raise OptionError("`outputs` must be a list of objects with a name")
    wanted = {}
    for tensor in asked:
        if not isinstance(tensor.get("name"), str) or tensor["name"] not in known:
            raise OptionError(f"there is no output {tensor.get('name')!r}; the outputs are {', '.join(known)}")
        wanted[str(tensor["name"])] = bool(_parameters(tensor).get("binary_data", by_default))
    return wanted
