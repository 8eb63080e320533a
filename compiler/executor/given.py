"""Checks of what a caller gives to an executor: names, numbers and arrays.

An array of the caller's is copied or refused, and never changed unless it was given to be filled.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from retune.compiler.dtype import is_float
from retune.compiler.errors import OptionError
from retune.compiler.executor.memory import check_fit, shared_array
from retune.compiler.executor.plan import BufferKind, BufferSpec, Plan
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.device import AnyArray


def number_as(value: Any, spec: BufferSpec) -> Array:
    """A number of Python as an array of a buffer's type; a fraction is none of an integer type."""
    fits = not isinstance(value, float) or is_float(spec.dtype)
    return np.asarray(value, np.dtype(spec.dtype) if fits else None)


def place_of(key: object, names: Mapping[str, int]) -> int:
    """What a name or an index stands for, -1 for nothing."""
    if isinstance(key, str):
        return names.get(key, -1)
    return int(key) if isinstance(key, (int, np.integer)) and not isinstance(key, bool) else -1


def parameter_names(plan: Plan) -> dict[str, int]:
    """The buffers that parameters can be loaded into, by name: inputs, and constants whose name is theirs alone."""
    constants = [
        (spec.name, number)
        for number, spec in enumerate(plan.buffers)
        if spec.kind is BufferKind.CONSTANT and spec.storage == number
    ]
    names = [name for name, _ in constants]
    alone = {name: number for name, number in constants if names.count(name) == 1}
    return alone | {plan.buffers[number].name: number for number in plan.inputs}


def copied(source: Array, spec: BufferSpec, out: AnyArray | None, what: str) -> Array:
    """A copy of a buffer, in `out` when given.

    Raises: OptionError when `out` has another shape or dtype, or is read-only.
    """
    if out is None:
        return source.copy()
    array = shared_array(out, f"{what} {spec.name}")
    if not array.flags.writeable:
        raise OptionError(f"{what} {spec.name} is read-only, and must be an array that can be written to")
    check_fit(array, spec, what)
    np.copyto(array, source)
    return cast("Array", out)
