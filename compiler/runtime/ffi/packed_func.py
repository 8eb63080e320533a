"""Conversion of Python values to the TVM FFI's; a `PackedFunc` is the FFI's own function, without a wrapper."""

from typing import Any

from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.ffi.bindings import FFIObject, PackedFunc
from retune.compiler.runtime.ffi.bindings import convert as _convert
from retune.compiler.runtime.ffi.bindings import object_use_count as _object_use_count

__all__ = ["PackedFunc", "convert", "object_use_count"]


def convert(value: Any) -> Any:
    """`value` as a value of the FFI.

    Lists and tuples become `Array`, dicts `Map`, functions `PackedFunc`, arrays of NumPy and of any library with DLPack
    `NDArray` on the same memory; strings, bytes and numbers stay the same. Any other object is passed through and comes
    back as the same object.
    Raises: ArtifactError for an array of elements that DLPack does not have.
    """
    try:
        return _convert(value)
    except BufferError as error:
        raise ArtifactError(f"the FFI takes no such array: {error}") from error


def object_use_count(value: FFIObject) -> int:
    """Number of references to an object of the FFI; 0 after a move.

    Raises: ArtifactError for any other object.
    """
    if not hasattr(value, "__chandle__"):
        raise ArtifactError(f"an object of the FFI has references to count, not {value!r:.80}")
    return _object_use_count(value)
