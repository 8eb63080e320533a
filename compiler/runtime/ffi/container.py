"""Containers of the TVM FFI: JSON serialization and structural equality.

Containers are immutable; serialization preserves sharing inside one.
"""

import json
from collections.abc import Iterator
from typing import Any

from retune.compiler.core.errors import ArtifactError, MismatchError
from retune.compiler.core.json_reader import JsonObject
from retune.compiler.runtime.ffi.bindings import FFIArray as Array
from retune.compiler.runtime.ffi.bindings import FFIMap as Map
from retune.compiler.runtime.ffi.bindings import convert, from_json, mismatch, to_json

__all__ = ["Array", "Map", "assert_structural_equal", "load_json", "save_json", "structural_equal"]

_PLAIN = {"int", "ffi.Shape", "Device", "DataType"}
"""Types whose integers are not indices of nodes."""
# The FFI's C++ reader is recursive: deep input overflows the stack instead of raising.
_DEEPEST = 500


def save_json(value: object) -> str:
    """Numbers, strings, bytes, devices, types and containers of them as JSON text.

    Raises: ArtifactError for values without such a form, such as a function or an array.
    """
    try:
        return str(to_json(convert(value)))
    except (TypeError, ValueError, RuntimeError, ArtifactError) as error:
        raise ArtifactError(f"a {type(value).__name__} cannot be saved as JSON: {error}") from error


def load_json(text: str) -> Any:
    """The inverse of `save_json`.

    Raises: ArtifactError for any other text.
    """
    try:
        graph = json.loads(text)
        _check_graph(graph)
        return from_json(json.dumps(graph))  # the checked text, whatever the FFI makes of duplicate keys
    except Exception as error:  # the FFI reports invalid text in many classes
        raise ArtifactError(f"this is no text that save_json makes: {error}") from error


def _check_graph(graph: JsonObject) -> None:
    """Ensure that no value contains itself, and none is nested too deep: the FFI follows references without end."""
    nodes = graph["nodes"]
    depth: list[int] = []
    for number, node in enumerate(nodes):
        references = [index for index in _numbers(node.get("data")) if index < len(nodes)]
        if node["type"] in _PLAIN:
            references = []
        # The FFI writes nodes in topological order, so a forward reference is a cycle or a forgery.
        if any(index >= number for index in references):
            raise ValueError(f"node {number} holds one that comes after it")
        depth.append(1 + max((depth[index] for index in references if index >= 0), default=0))
        if depth[-1] > _DEEPEST:
            raise ValueError(f"node {number} is nested more than {_DEEPEST} deep")


def _numbers(data: object) -> Iterator[int]:
    """The integers in the data of a node, which may be indices of nodes."""
    values = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return (value for value in values if isinstance(value, int) and not isinstance(value, bool))


def structural_equal(lhs: object, rhs: object, map_free_vars: bool = False) -> bool:
    """Whether two values are structurally equal; with `map_free_vars`, up to names of free variables."""
    return _difference(lhs, rhs, map_free_vars) is None


def assert_structural_equal(lhs: object, rhs: object, map_free_vars: bool = False) -> None:
    """Ensure that two values are structurally equal. Objects outside the FFI, such as our expressions, are compared by
    `==`.

    Raises: MismatchError that names the first difference.
    """
    difference = _difference(lhs, rhs, map_free_vars)
    if difference is not None:
        raise MismatchError(f"the values are not built alike: {difference}")


def _difference(lhs: object, rhs: object, map_free_vars: bool) -> str | None:
    try:
        paths = mismatch(lhs, rhs, map_free_vars)
    except (TypeError, BufferError):  # an object outside the FFI
        same = lhs == rhs
        return None if (same if isinstance(same, bool) else lhs is rhs) else f"{lhs} and {rhs}"
    return None if paths is None else f"{paths[0]} of the first, {paths[1]} of the second"
