"""Deprecated: the memory of an executor on a GPU is `retune.compiler.executor.cuda_memory.CudaMemory`."""

import warnings

from retune.compiler.executor.cuda_memory import CudaMemory
from retune.compiler.runtime.cuda_driver import Driver


def CudaStore(driver: Driver, number: int = 0) -> CudaMemory:  # noqa: N802
    """`CudaMemory(driver, number)`."""
    warnings.warn("CudaStore is deprecated; use CudaMemory", DeprecationWarning, stacklevel=2)
    return CudaMemory(driver, number)
