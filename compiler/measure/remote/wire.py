"""Requests and answers of a fleet as bytes, and back.

They are data, never code: only classes listed here are constructed, by their own constructors, so foreign bytes are at
worst refused. Object identity is preserved.

A message is an archive of `message.json` and of `blobs`, the contents of its arrays and byte strings one after another:

    {"objects": [[class, field …] …], "root": value}
    value = null | bool | int | text | finite float
          | {"f": text}             a float that JSON has no name for
          | {"t" | "l": [value …]}  a tuple, a list
          | {"d": [[key, value] …]} a mapping
          | {"e": [class, name]}    a member of an enumeration
          | {"b": [start, size]} | {"a": [dtype, shape, start, size]}   bytes, an array
          | {"o": number}           an object; objects refer only to earlier objects
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

import numpy as np

from retune.compiler.core.dtype import Array
from retune.compiler.core.errors import ArtifactError, MeasureError, RetuneError, refuse_depth
from retune.compiler.core.gpu_facts import GpuFacts
from retune.compiler.core.packing import Packing
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.ir.expr import Binary, BinaryOp, Buffer, Call, Cast, Const, Dot, Load, Not, Select, Var
from retune.compiler.measure.options import MeasureOptions
from retune.compiler.measure.record import Measurement, MeasureStatus
from retune.compiler.measure.remote.fleet import (
    BuildRequest,
    CompareRequest,
    DescribeRequest,
    LimitsRequest,
    TimeRequest,
)
from retune.compiler.runtime.archive import DAMAGE, Archive, archive_bytes, damage_text
from retune.compiler.runtime.artifact import ArgSpec, DeviceCode, ExternBuffer, ExternCall, KernelArtifact, KernelLaunch
from retune.compiler.schedule.dag import ComputeDAG, Node
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.steps import dump_steps, load_steps
from retune.compiler.schedule.task import SearchTask, restored_task
from retune.compiler.te.reduction import Axis, AxisKind, Combiner, Reduce, ReducedValue, Values
from retune.compiler.te.tensor import ComputeOp, ExternOp, Handle, PackedCall, PlaceholderOp, ScanOp, Tensor, TensorRead

KIND, VERSION = "message", 6
_BEFORE_3 = b"{"
"""The first byte of messages of earlier versions: a line of JSON."""

_PLAIN = (
    *(Binary, Buffer, Call, Cast, Const, Dot, Load, Not, Select, Var),
    *(Axis, Combiner, ComputeOp, ExternOp, Handle, PackedCall, PlaceholderOp, Reduce, ReducedValue, ScanOp),
    *(Tensor, TensorRead, Values, Node, HardwareParams),
    *(MeasureOptions, Measurement, KernelArtifact, ArgSpec, ExternBuffer, ExternCall, Packing),
    *(DeviceCode, GpuFacts, KernelLaunch),
    *(TimeRequest, DescribeRequest, LimitsRequest, CompareRequest),
)
"""Frozen classes that are constructed from their fields."""

_ENUMS: tuple[type[Enum], ...] = (BinaryOp, AxisKind, LayoutRewriteOption, MeasureStatus)


def _parts_of_graph(graph: ComputeDAG) -> tuple[object, ...]:
    return graph.nodes, graph.inputs, graph.outputs, graph.__dict__.get("_hash")


def _graph_of(
    nodes: tuple[Node, ...], inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], key: str | None
) -> ComputeDAG:
    graph = ComputeDAG._from_parts(nodes, inputs, outputs)
    if key is not None:  # the function that made it may not be registered here
        graph.__dict__["_hash"] = key
    return graph


def _parts_of_task(task: SearchTask) -> tuple[object, ...]:
    return task.name, task.dag, task.target, task.hardware, task.key, task.layout, task.shapes


def _parts_of_build(request: BuildRequest) -> tuple[object, ...]:
    return request.task, [dump_steps(steps) for steps in request.candidates], request.options


def _build_of(task: SearchTask, candidates: list[str], options: MeasureOptions) -> BuildRequest:
    return BuildRequest(task, [tuple(load_steps(text)) for text in candidates], options)


_SPECIAL: Mapping[type, tuple[Callable[[Any], tuple[object, ...]], Callable[..., object]]] = {
    BuildRequest: (_parts_of_build, _build_of),
    ComputeDAG: (_parts_of_graph, _graph_of),
    SearchTask: (_parts_of_task, restored_task),
    Target: (lambda target: (str(target),), Target),
}
"""Classes with their own parts and constructors."""

_CLASSES: Mapping[str, Callable[..., object]] = {
    **{kind.__name__: kind for kind in _PLAIN},
    **{kind.__name__: make for kind, (_, make) in _SPECIAL.items()},
}
_MEMBERS: Mapping[str, type[Enum]] = {kind.__name__: kind for kind in _ENUMS}


def to_bytes(value: object) -> bytes:
    """The message of a value.

    Raises: MeasureError for a value of a class that cannot be sent, or expressions nested too deep.
    """
    writer = _Writer()
    with refuse_depth("what is sent to another machine", MeasureError):
        root = writer.plain(value)
    head = json.dumps({"objects": writer.objects, "root": root}, allow_nan=False).encode()
    return archive_bytes(KIND, VERSION, {"message.json": head, "blobs": b"".join(writer.blobs)})


def from_bytes(data: bytes) -> Any:
    """The value of a message.

    Raises: MeasureError when it is damaged, or another version of Retune wrote it.
    """
    try:
        archive = _open_archive(data)
        head = archive.json("message.json")
        reader = _Reader(archive.blob("blobs"))
        for kind, *parts in head["objects"]:
            reader.add(kind, parts)
        return reader.value(head["root"])
    except RetuneError as error:
        if isinstance(error, MeasureError):
            raise
        raise MeasureError(f"a message from another machine makes no sense: {error}") from error
    except DAMAGE as error:
        raise MeasureError(f"a message from another machine cannot be read: {damage_text(error)}") from error


def _open_archive(data: bytes) -> Archive:
    """The message as an archive. Raises: MeasureError for another version; an error of `DAMAGE`."""
    try:
        if data.startswith(_BEFORE_3):
            raise ArtifactError("a message of version 2 or earlier")
        archive = Archive(data, KIND, VERSION)
    except ArtifactError as error:
        advice = "run the same version of Retune everywhere"
        raise MeasureError(f"a message from another machine: {error}; {advice}") from error
    return archive


class _Writer:
    """Turns values into plain values; objects are numbered as they are finished."""

    def __init__(self) -> None:
        self.objects: list[list[object]] = []
        self.blobs: list[bytes] = []
        self._size = 0
        self._known: dict[int, tuple[int, object]] = {}  # the object is kept, so that its id stays unique

    def plain(self, value: object) -> object:
        """The form of a value, see the grammar."""
        if isinstance(value, Enum):  # first: members may be strings or numbers too
            return {"e": [self._qualified_name(_MEMBERS, value), value.name]}
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, (float, np.floating)):
            # JSON has no infinities and no NaN; `allow_nan=False` ensures that none slips through.
            number = float(value)
            return number if math.isfinite(number) else {"f": repr(number)}
        if isinstance(value, np.integer):
            return int(value)
        if isinstance(value, (tuple, list)):
            return {"t" if isinstance(value, tuple) else "l": [self.plain(item) for item in value]}
        if isinstance(value, Mapping):
            return {"d": [[self.plain(key), self.plain(item)] for key, item in value.items()]}
        if isinstance(value, bytes):
            return {"b": self._blob(value)}
        if isinstance(value, np.ndarray):
            return {"a": [value.dtype.name, list(value.shape), *self._blob(value.tobytes())]}
        return {"o": self._number(value)}

    def _number(self, value: object) -> int:
        # By identity: expressions share subtrees, which equality would compare again and again.
        entry = self._known.get(id(value))
        if entry is None:
            name = self._qualified_name(_CLASSES, value)
            if type(value) in _SPECIAL:
                parts = _SPECIAL[type(value)][0](value)
            else:
                parts = tuple(getattr(value, item.name) for item in fields(value) if item.init)  # type: ignore[arg-type]
            self.objects.append([name, *map(self.plain, parts)])
            entry = self._known[id(value)] = len(self.objects) - 1, value
        return entry[0]

    def _blob(self, data: bytes) -> list[int]:
        start, self._size = self._size, self._size + len(data)
        self.blobs.append(data)
        return [start, len(data)]

    def _qualified_name(self, names: Mapping[str, object], value: object) -> str:
        name = type(value).__name__
        if name not in names:
            raise MeasureError(f"{value!r:.80} cannot be sent to another machine: {name} is no class that travels")
        return name


class _Reader:
    """The inverse of `_Writer`."""

    def __init__(self, blobs: bytes) -> None:
        self._blobs = blobs
        self._objects: list[object] = []

    def add(self, kind: str, parts: list[object]) -> None:
        """Construct the next object."""
        # Constructors validate; a class that is not in the table is a KeyError, never an import.
        self._objects.append(_CLASSES[kind](*map(self.value, parts)))

    def value(self, form: object) -> object:
        if not isinstance(form, dict):
            return form
        ((tag, content),) = form.items()
        return _READERS[tag](self, content)

    def _blob(self, start: int, size: int) -> bytes:
        if not 0 <= start <= start + size <= len(self._blobs):
            raise ValueError("it is cut off")
        return self._blobs[start : start + size]

    def _array(self, content: list[Any]) -> Array:
        dtype, shape, start, size = content
        # Copied: frombuffer gives a read-only view, which would keep the whole message alive.
        return np.frombuffer(self._blob(start, size), np.dtype(dtype)).reshape(shape).copy()

    def _object(self, number: int) -> object:
        # Python would count from the end, and a forward reference would become a valid reference.
        if number < 0:
            raise ValueError("an object has no number")
        return self._objects[number]


_READERS: Mapping[str, Callable[[_Reader, Any], object]] = {
    "f": lambda _, text: float(text),
    "t": lambda reader, items: tuple(map(reader.value, items)),
    "l": lambda reader, items: list(map(reader.value, items)),
    "d": lambda reader, pairs: {reader.value(key): reader.value(item) for key, item in pairs},
    "e": lambda _, content: _MEMBERS[content[0]][content[1]],
    "b": lambda reader, content: reader._blob(*content),
    "a": lambda reader, content: reader._array(content),
    "o": lambda reader, number: reader._object(number),
}
