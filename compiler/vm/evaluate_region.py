"""Computes a region by NumPy, without the compiler."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from retune.compiler.graph.region import Region
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.buffers import address
from retune.compiler.vm.allocator import Allocator
from retune.compiler.vm.values import tensors_of


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
