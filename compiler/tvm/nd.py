"""TVM-compatible `nd` arrays for kernels and functions, on the TVM FFI.

Memory allocated here is aligned to 64 bytes, as kernels require. It is shared with NumPy, PyTorch and other DLPack
users; nothing is copied implicitly.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from retune.compiler.core.dtype import BFLOAT16
from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.buffers import empty as _empty
from retune.compiler.runtime.device import Device, require_cpu
from retune.compiler.runtime.device import cpu as _cpu
from retune.compiler.runtime.ffi.bindings import NDArray, tensor_of

__all__ = ["NDArray", "array", "empty", "from_dlpack"]


def array(values: Any, device: Device | None = None) -> NDArray:
    """A copy of the values, an array or nested lists.

    Raises: OptionError for another device than the CPU; ArtifactError for a type that NumPy cannot pass on, or lists of
    different lengths.
    """
    try:
        source = values.numpy() if isinstance(values, NDArray) else np.asarray(values)
    except ValueError as error:  # lists of different lengths
        raise ArtifactError(f"the values make no array: {error}") from None
    # Copied into Retune's own memory even if `values` is an array: NumPy aligns to 16 bytes, kernels expect 64.
    copy = empty(source.shape, source.dtype.name, device)
    copy.numpy()[...] = source
    return copy


def empty(shape: Sequence[int], dtype: str = "float32", device: Device | None = None) -> NDArray:
    """An uninitialized array.

    Raises: OptionError for another device than the CPU, a negative extent or a type that is no number type;
    ArtifactError for a type that NumPy cannot pass on, or when there is no memory.
    """
    require_cpu(_cpu() if device is None else device, "arrays are made here")
    if isinstance(dtype, str) and dtype == BFLOAT16:
        raise ArtifactError("NumPy cannot pass arrays of bfloat16 on; make them with PyTorch and use from_dlpack")
    return from_dlpack(_empty(shape, dtype))


def from_dlpack(source: Any) -> NDArray:
    """The memory of another library's array, or of a DLPack capsule, without a copy. Raises: ArtifactError."""
    try:
        tensor = tensor_of(source)
    # What producers of DLPack raise is not specified: NumPy has BufferError, PyTorch RuntimeError and others.
    except (TypeError, ValueError, RuntimeError, AttributeError, BufferError) as error:
        raise ArtifactError(f"a {type(source).__name__} gives no array of DLPack: {error}") from error
    if not isinstance(tensor, NDArray):
        raise ArtifactError(f"{type(tensor).__module__} has taken the FFI's arrays over; load it after this one")
    return tensor
