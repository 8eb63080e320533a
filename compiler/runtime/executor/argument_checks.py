"""Checks of a caller's arguments to an executor: names, numbers and arrays."""

from collections.abc import Mapping
from typing import cast

import numpy as np

from retune.compiler.core.dtype import is_float
from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.device import AnyArray
from retune.compiler.runtime.executor.plan import BufferKind, BufferSpec, Plan


def position_of(key: object, names: Mapping[str, int]) -> int:
    """The position for a name or an index, -1 for neither."""
    if isinstance(key, str):
        return names.get(key, -1)
    return int(key) if isinstance(key, (int, np.integer)) and not isinstance(key, bool) else -1


def parameter_names(plan: Plan) -> dict[str, int]:
    """The buffers that parameters can be loaded into, by name: inputs, and constants with a unique name."""
    # Only constants that own memory: loading a view would change its owner.
    constants = [
        (spec.name, number)
        for number, spec in enumerate(plan.buffers)
        if spec.kind is BufferKind.CONSTANT and spec.storage == number
    ]
    names = [name for name, _ in constants]
    unique = {name: number for name, number in constants if names.count(name) == 1}
    return unique | {plan.buffers[number].name: number for number in plan.inputs}


def as_array(value: object, spec: BufferSpec, what: str) -> Array:
    """A caller's value for a buffer, possibly a number, as an array of the buffer's shape and type.

    Raises: OptionError when it does not fit.
    """
    try:
        # A Python number has no element type, so it takes the buffer's.
        array = _number_as(value, spec) if type(value) in (int, float, bool) else np.asarray(value)
    except (ValueError, OverflowError, TypeError, RuntimeError) as error:  # nested lists of different lengths; 300
        # as int8; a tensor of PyTorch that is on a GPU, or wants a gradient
        raise OptionError(f"{what} {spec.name} is no array: {error}") from None
    check_fit(array, spec, what)
    return array


def shared_array(array: object, what: str) -> Array:
    """An array of any library in the CPU's memory as a NumPy array, by DLPack, without a copy. Raises: OptionError."""
    if isinstance(array, np.ndarray):
        return array
    if not hasattr(array, "__dlpack__"):
        raise OptionError(f"{what}: an array is needed, of NumPy or with DLPack, not a {type(array).__name__}")
    try:
        shared: Array = np.from_dlpack(array)
    except Exception as error:  # of another library, which may raise anything
        raise OptionError(f"{what}: this {type(array).__name__} cannot be used without a copy: {error}") from None
    return shared


def check_fit(array: Array, spec: BufferSpec, what: str) -> None:
    """Check that an array has the shape and type of a buffer. Raises: OptionError."""
    if tuple(array.shape) != spec.shape or array.dtype != np.dtype(spec.dtype):
        order = "" if array.dtype.isnative else " in another byte order"
        raise OptionError(
            f"{what} {spec.name} must be {spec.dtype}{list(spec.shape)}, "
            f"not {array.dtype.name}{list(array.shape)}{order}"
        )


def copy_to(out: AnyArray | None, source: Array, spec: BufferSpec, what: str) -> Array:
    """A copy of a buffer, in `out` if given. Raises: OptionError when `out` does not fit or is read-only."""
    if out is None:
        return source.copy()
    array = shared_array(out, f"{what} {spec.name}")
    if not array.flags.writeable:
        raise OptionError(f"{what} {spec.name} is read-only, and must be an array that can be written to")
    check_fit(array, spec, what)
    np.copyto(array, source)
    return cast("Array", out)


def _number_as(value: object, spec: BufferSpec) -> Array:
    """A Python number as an array of a buffer's type; integer types take no fractions."""
    fits = not isinstance(value, float) or is_float(spec.dtype)
    return np.asarray(value, np.dtype(spec.dtype) if fits else None)
