"""Values of the virtual machine: conversion of a caller's arguments, and of results back, and what NumPy computes.

Values are arrays that are dense and aligned to 64 bytes. Arguments of other kinds raise an error that names them; an
array that already fits is used without a copy.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from retune.compiler.core.dtype import is_number
from retune.compiler.core.errors import MachineError
from retune.compiler.graph.region import OPTIONAL, TENSOR, Param, Region, RuntimeValue
from retune.compiler.runtime.artifact import ALIGNMENT, Array
from retune.compiler.runtime.buffers import address, aligned_copy
from retune.compiler.runtime.ffi.host_array import HostArray
from retune.compiler.vm.allocator import Allocator

TUPLE = 0
"""The tag of tuples."""


@dataclass(frozen=True, slots=True, eq=False)
class ADT(Sequence[Any]):
    """The results of a function that has none or several: `fields` are arrays, the `tag` is that of tuples."""

    tag: int
    fields: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.fields)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Any, ...]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self.fields[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fields)


def argument(value: Any, dtype: str | None = None) -> Array:
    """What a caller passes, as an array that kernels can read: of an array that is dense and aligned a view without
    other references, of others a copy. Numbers become arrays without dimensions, of `dtype` if that is known and holds
    them, else of int32 or float32; None becomes an array without elements.

    Raises: MachineError for anything else.
    """
    if isinstance(value, np.ndarray):
        if not is_number(value.dtype):
            raise MachineError(f"arrays of numbers are arguments, not one of {value.dtype}")
        return dense(value)
    if value is None:
        return dense(np.zeros((0,), np.float32))
    if isinstance(value, (bool, int, float, np.number, np.bool_)):
        return dense(_number(value, dtype))
    numpy = getattr(value, "numpy", None)  # an array of the FFI, PyTorch and the like
    if callable(numpy):
        return dense(np.asarray(numpy()))
    raise MachineError(f"arrays and numbers are arguments, not a {type(value).__name__}")


def argument_of(value: object, param: Param) -> RuntimeValue:
    """What a caller passes for a parameter: see `argument`; a list of such for a sequence, None for an absent value.

    Raises: MachineError for anything else.
    """
    if not param.is_tensor and value is None:
        return None
    if param.form in (TENSOR, OPTIONAL):
        return _argument(value, param)
    if not isinstance(value, list | tuple) or any(item is None for item in value):
        kind = "one with None in it" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
        raise MachineError(f"the input {param} takes a list of arrays, not {kind}")
    return tuple(_argument(item, param) for item in value)


def _argument(value: object, param: Param) -> Array:
    try:
        return argument(value, param.dtype)
    except MachineError as error:
        raise MachineError(f"the input {param}: {error}") from None


def tensors_of(values: Iterable[RuntimeValue]) -> Iterator[Array]:
    """All arrays in some values."""
    for value in values:
        if isinstance(value, tuple):
            yield from value
        elif value is not None:
            yield value


def _number(value: object, dtype: str | None) -> Array:
    """A number as an array without dimensions; a fraction is none of an integer type."""
    fraction = isinstance(value, (float, np.floating))
    if dtype is not None and not (fraction and np.dtype(dtype).kind in "iub"):
        try:
            return np.asarray(value).astype(dtype) if fraction else np.asarray(value, np.dtype(dtype))
        except OverflowError as error:
            raise MachineError(f"{value} is no number of {dtype}: {error}") from None
    if isinstance(value, np.number):
        return np.asarray(value)
    # The types that Relay's `const` gives to Python's numbers.
    return np.asarray(value, np.float32 if fraction else np.int32)


def dense(array: Array) -> Array:
    """A view of the array when it is dense, aligned and native, else a copy that is."""
    plain = array.view(np.ndarray)
    native = plain if plain.dtype.isnative else plain.astype(plain.dtype.newbyteorder("="))
    fits = native.flags.c_contiguous and address(native) % ALIGNMENT == 0
    return native if fits else aligned_copy(native)


def result(values: Sequence[RuntimeValue], inputs: Sequence[RuntimeValue]) -> Any:
    """What the caller gets of a function's results: an `ADT`, or the only result. Arrays have the methods of the FFI's
    arrays, and share no memory with `inputs` or constants, nor with each other; a sequence is a list of them.
    """
    arrays = tuple(tensors_of(inputs))
    if len(values) == 1 and isinstance(values[0], np.ndarray):
        return _own(values[0], arrays)
    # Arrays of one memory that live at a time begin at one address, as one value under two names or in two shapes does.
    addresses: set[int] = set()

    def own(value: Array) -> Array:
        start = address(value)
        is_shared = start in addresses and value.size > 0
        addresses.add(start)
        return aligned_copy(value).view(HostArray) if is_shared else _own(value, arrays)

    results = tuple(
        [own(array) for array in value] if isinstance(value, tuple) else None if value is None else own(value)
        for value in values
    )
    return results[0] if len(results) == 1 else ADT(TUPLE, results)


def _own(array: Array, inputs: Sequence[Array]) -> Array:
    """The array, or a copy of an array that is constant or somebody else's: a view of an input has its owner."""
    if array.flags.writeable and not isinstance(array.base, np.ndarray):
        return array.view(HostArray)  # it is no view of another array, as `argument` makes them
    owner = _owner(array)
    is_shared = not array.flags.writeable or any(_owner(value) is owner for value in inputs)
    return (aligned_copy(array) if is_shared else array).view(HostArray)


def _owner(array: Array) -> Array:
    """The array whose memory this one shows."""
    base = array.base
    while isinstance(base, np.ndarray):
        array, base = base, base.base
    return array


def whole_number(value: object, what: str) -> int:
    """The number that an array of one element holds, an integer or a bool. Raises: MachineError when it does not."""
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "iub":
        return int(value.item())
    raise MachineError(f"{what} must be one integer, not {describe(value)}")


def describe(value: Any) -> str:
    """A value in words."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name}{list(value.shape)}"
    if isinstance(value, tuple):
        return f"a sequence of {len(value)} arrays"
    return "nothing" if value is None else f"a {type(value).__name__}"


def evaluate_region(
    region: Region,
    fixed: Mapping[str, Array],
    constants: Mapping[str, Array],
    allocator: Allocator,
    inputs: Sequence[Any],
) -> list[Any]:
    """The results of a region by NumPy, in arrays that kernels can read. `inputs` has those that are not `fixed`,
    `constants` are those of the program.

    Raises: what `evaluate` raises.
    """
    values = {**dict(zip(passed_inputs(region, fixed), inputs, strict=True)), **fixed}
    # What a sequence passes on is not copied: a loop that appends would else take quadratic time.
    known = {(address(array), array.dtype, array.shape): array for array in tensors_of(inputs)}

    def copy(result: Array) -> Array:
        array, _ = allocator.array(result.shape, result.dtype, result.nbytes)
        np.copyto(array, result)
        return array

    def keep(result: Array) -> Array:
        array = known.get((address(result), result.dtype, result.shape)) if result.size else None
        return copy(result) if array is None else array

    return [
        tuple(map(keep, result)) if isinstance(result, tuple) else None if result is None else copy(result)
        for result in region.evaluate(values, constants)
    ]


def passed_inputs(region: Region, fixed: Mapping[str, Array]) -> list[str]:
    """The inputs that calls pass: those that are not the same array in every call."""
    return [name for name in region.inputs if name not in fixed]
