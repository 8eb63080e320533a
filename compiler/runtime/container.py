"""Containers of the TVM FFI: JSON serialization and structural equality.

Containers are immutable; sharing inside one is preserved by serialization.
"""

import json
from collections.abc import Iterator
from typing import Any

from retune.compiler.errors import ArtifactError, MismatchError
from retune.compiler.runtime.ffi import FFIArray as Array
from retune.compiler.runtime.ffi import FFIMap as Map
from retune.compiler.runtime.ffi import convert, from_json, mismatch, to_json

__all__ = ["Array", "Map", "assert_structural_equal", "load_json", "save_json", "structural_equal"]

_PLAIN = {"int", "ffi.Shape", "Device", "DataType"}
"""Types whose numbers are no numbers of nodes."""
# The FFI reads recursively in C++, where depth ends in a stack overflow and not in an exception.
_DEEPEST = 500


def save_json(value: Any) -> str:
    """Numbers, strings, bytes, devices, types and containers of them as JSON text.

    Raises: ArtifactError for what has no such form, such as a function or an array.
    """
    try:
        return str(to_json(convert(value)))
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise ArtifactError(f"a {type(value).__name__} cannot be saved as JSON: {error}") from error


def load_json(text: str) -> Any:
    """What `save_json` made a text of.

    Raises: ArtifactError for any other text.
    """
    try:
        graph = json.loads(text)
        _check_graph(graph)
        return from_json(json.dumps(graph))  # what was checked, however the FFI reads what stands there twice
    except Exception as error:  # the FFI says what is wrong with a string in many classes
        raise ArtifactError(f"this is no text that save_json makes: {error}") from error


def _check_graph(graph: Any) -> None:
    """Ensure that no value holds itself, and none is nested too deep: the FFI follows references without end."""
    nodes = graph["nodes"]
    depth: list[int] = []
    for number, node in enumerate(nodes):
        held = [place for place in _numbers(node.get("data")) if place < len(nodes)]
        if node["type"] in _PLAIN:
            held = []
        # The FFI writes nodes in topological order, so a reference forward is a cycle or a forgery.
        if any(place >= number for place in held):
            raise ValueError(f"node {number} holds one that comes after it")
        depth.append(1 + max((depth[place] for place in held if place >= 0), default=0))
        if depth[-1] > _DEEPEST:
            raise ValueError(f"node {number} is nested more than {_DEEPEST} deep")


def _numbers(data: Any) -> Iterator[int]:
    """The numbers in the data of a node, which may be those of other nodes."""
    values = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return (value for value in values if isinstance(value, int) and not isinstance(value, bool))


def structural_equal(lhs: Any, rhs: Any, map_free_vars: bool = False) -> bool:
    """Whether two values are built alike; with `map_free_vars` a free variable may have another name in the other."""
    return _difference(lhs, rhs, map_free_vars) is None


def assert_structural_equal(lhs: Any, rhs: Any, map_free_vars: bool = False) -> None:
    """Ensure that two values are built alike. Objects that are not the FFI's, such as our expressions, are compared
    by `==`.

    Raises: MismatchError that names the first place where they differ.
    """
    difference = _difference(lhs, rhs, map_free_vars)
    if difference is not None:
        raise MismatchError(f"the values are not built alike: {difference}")


def _difference(lhs: Any, rhs: Any, map_free_vars: bool) -> str | None:
    try:
        found = mismatch(lhs, rhs, map_free_vars)
    except (TypeError, BufferError):  # an object that the FFI does not look into
        same = lhs == rhs
        return None if (same if isinstance(same, bool) else lhs is rhs) else f"{lhs} and {rhs}"
    return None if found is None else f"{found[0]} of the first, {found[1]} of the second"
