"""Values of the virtual machine: conversion of a caller's arguments into registers, and of results back.

Arguments that the machine cannot represent raise an error that names them; an array that already fits is used without a
copy.

    Value = array            dense, aligned to 64 bytes
          | ADT              a structure: a tag and fields, which are values
          | Closure          a function with values for its first parameters
          | str
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from retune.compiler.dtype import BFLOAT16
from retune.compiler.errors import MachineError
from retune.compiler.runtime.artifact import ALIGNMENT, Array
from retune.compiler.runtime.buffers import address, aligned_copy
from retune.compiler.runtime.host_array import HostArray

TUPLE = 0
"""The tag of tuples."""


@dataclass(frozen=True, slots=True, eq=False)
class ADT(Sequence[Any]):
    """A structure: `tag` selects its constructor, `fields` are arrays or structures."""

    tag: int
    fields: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.fields)

    @overload
    def __getitem__(self, place: int) -> Any: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Any, ...]: ...

    def __getitem__(self, place: int | slice) -> Any:
        return self.fields[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fields)


@dataclass(frozen=True, slots=True, eq=False)
class Closure:
    """A function, by its index, and its captured values."""

    function: int
    free: tuple[Any, ...]


def argument(given: Any, dtype: str | None = None) -> Any:
    """What a caller passes, as a register holds it: of an array that is dense and aligned a view without other
    references, of others a copy. Numbers become arrays without dimensions, of `dtype` if that is known and
    holds them, else of int32 or float32; lists and tuples become structures with the tag 0, None an array without
    elements.

    Raises: MachineError for anything else.
    """
    if isinstance(given, np.ndarray):
        if given.dtype.kind not in "biuf" and given.dtype.name != BFLOAT16:
            raise MachineError(f"arrays of numbers are arguments, not one of {given.dtype}")
        return dense(given)
    if isinstance(given, (list, tuple)):
        return ADT(TUPLE, tuple(argument(each) for each in given))
    if isinstance(given, ADT):
        return ADT(given.tag, tuple(argument(each) for each in given))
    if given is None:
        return dense(np.zeros((0,), np.float32))
    if isinstance(given, (bool, int, float, np.number, np.bool_)):
        return dense(_number(given, dtype))
    if isinstance(given, (str, Closure)):
        return given
    numpy = getattr(given, "numpy", None)  # an array of the FFI, PyTorch and the like
    if callable(numpy):
        return dense(np.asarray(numpy()))
    raise MachineError(f"arrays, numbers, lists and tuples of them are arguments, not a {type(given).__name__}")


def _number(given: Any, dtype: str | None) -> Array:
    """A number as an array without dimensions; a fraction is none of an integer type."""
    fraction = isinstance(given, (float, np.floating))
    if dtype is not None and not (fraction and np.dtype(dtype).kind in "iub"):
        try:
            return np.asarray(given).astype(dtype) if fraction else np.asarray(given, np.dtype(dtype))
        except OverflowError as error:
            raise MachineError(f"{given} is no number of {dtype}: {error}") from None
    if isinstance(given, np.number):
        return np.asarray(given)
    # The types that Relay's `const` gives to Python's numbers.
    return np.asarray(given, np.float32 if fraction else np.int32)


def dense(array: Array) -> Array:
    """A view of the array when it is dense, aligned and native, else a copy that is."""
    plain = array.view(np.ndarray)
    native = plain if plain.dtype.isnative else plain.astype(plain.dtype.newbyteorder("="))
    fits = native.flags.c_contiguous and address(native) % ALIGNMENT == 0
    return native if fits else aligned_copy(native)


def result(value: Any, given: Sequence[Any] = ()) -> Any:
    """What the caller gets: arrays have the methods of the FFI's arrays, and share no memory with what was `given` or
    is constant, nor with each other.
    """
    if isinstance(value, np.ndarray):
        return _own(value, given)
    return _results(value, given, set()) if isinstance(value, ADT) else value


def _own(array: Array, given: Sequence[Any]) -> Array:
    """The array, or a copy of one that is constant or somebody else's: a view of what was given has its owner."""
    if array.flags.writeable and not isinstance(array.base, np.ndarray):
        return array.view(HostArray)  # it is no view of another array, as `argument` makes them
    owner, shared = _owner(array), not array.flags.writeable
    for each in given:
        if type(each) is np.ndarray:
            shared |= _owner(each) is owner
        else:
            shared |= any(_owner(inner) is owner for inner in arrays_in([each]))
    return (aligned_copy(array) if shared else array).view(HostArray)


def _owner(array: Array) -> Array:
    """The array whose memory this one shows."""
    base = array.base
    while isinstance(base, np.ndarray):
        array, base = base, base.base
    return array


def _results(value: Any, given: Sequence[Any], taken: set[int]) -> Any:
    """`taken` are the addresses of the results so far: arrays of one memory that live at a time begin at one place, as
    one value under two names or in two shapes does.
    """
    if isinstance(value, ADT):
        return ADT(value.tag, tuple(_results(each, given, taken) for each in value))
    if not isinstance(value, np.ndarray):
        return value
    place = address(value)
    if place in taken and value.size:
        return aligned_copy(value).view(HostArray)
    taken.add(place)
    return _own(value, given)


def arrays_in(values: Sequence[Any]) -> Iterator[Array]:
    """The arrays among values and in their structures."""
    for value in values:
        if isinstance(value, np.ndarray):
            yield value
        elif type(value) is ADT:
            yield from arrays_in(value)


def whole_number(value: Any, what: str) -> int:
    """The number that an array of one element holds, an integer or a bool. Raises: MachineError when it does not."""
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "iub":
        return int(value.item())
    raise MachineError(f"{what} must be one integer, not {described(value)}")


def described(value: Any) -> str:
    """A value in words."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name}{list(value.shape)}"
    if isinstance(value, ADT):
        return f"a structure with the tag {value.tag} and {len(value)} fields"
    return "nothing" if value is None else f"a {type(value).__name__}"
