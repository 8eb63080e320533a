"""Deprecated: the memory of an executor on a GPU is `retune.compiler.runtime.executor.cuda_memory.CudaMemory`."""

import warnings

from retune.compiler.runtime.cuda.driver_interface import Driver
from retune.compiler.runtime.executor.cuda_memory import CudaMemory


def CudaStore(driver: Driver, number: int = 0) -> CudaMemory:  # noqa: N802
    """`CudaMemory(driver, number)`."""
    warnings.warn("CudaStore is deprecated; use CudaMemory", DeprecationWarning, stacklevel=2)
    return CudaMemory(driver, number)
