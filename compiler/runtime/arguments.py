"""Checks of arguments: the buffers of a kernel, whose addresses it takes, numbers of threads, and paths.

A kernel accesses only memory of the arrays behind these addresses. It relies on arguments that start at multiples of 64
bytes, are dense, and do not overlap its outputs. A mismatch is one sentence.
"""

import os
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.runtime.artifact import ALIGNMENT, ArgSpec, Array

Buffer = Array | int
"""An array, or the address of memory that the caller keeps alive and large enough."""

# Two sockets of 192 cores with two threads each have 768.
MOST_THREADS = 1024
"""OpenMP ends the process when it cannot start a thread."""


def check_count(kernel: str, specs: Sequence[ArgSpec], count: int, workspace: bool = False) -> None:
    """Ensure that there is one buffer per argument, and optionally a workspace.

    Raises: ArtifactError.
    """
    if count != len(specs) and not (workspace and count == len(specs) + 1):
        names = ", ".join(f"{spec.name}{' (written)' if spec.is_output else ''}" for spec in specs)
        raise ArtifactError(f"kernel {kernel} takes {len(specs)} buffers, {count} are given; they are {names}")


def check_threads(kernel: str, threads: int) -> int:
    """A valid number of threads.

    Raises: ArtifactError.
    """
    if not is_thread_count(threads):
        raise ArtifactError(f"kernel {kernel}: {threads!r} threads; an integer from 1 to {MOST_THREADS} is needed")
    return int(threads)


def require_thread_count(threads: object) -> None:
    """Check that kernels can run on `threads` threads. Raises: OptionError."""
    if not is_thread_count(threads):
        raise OptionError(f"threads must be an integer from 1 to {MOST_THREADS}, not {threads!r:.80}")


def is_thread_count(threads: object) -> bool:
    whole = isinstance(threads, (int, np.integer)) and not isinstance(threads, bool)
    return whole and 1 <= int(threads) <= MOST_THREADS  # type: ignore[call-overload]


def address_of(kernel: str, spec: ArgSpec, buffer: Buffer) -> int:
    """The address of one argument: an array of its type and size in any shape, dense, aligned, and writable if it is an
    output; an address is only checked for its alignment.

    Raises: ArtifactError.
    """
    where = f"kernel {kernel}, argument {spec.name}"
    if isinstance(buffer, bool) or not isinstance(buffer, (int, np.ndarray)):
        raise ArtifactError(f"{where}: expected a NumPy array, got {type(buffer).__name__}")
    if isinstance(buffer, int):
        address = buffer
    else:
        if buffer.dtype != np.dtype(spec.dtype) or buffer.size != spec.size:
            raise ArtifactError(
                f"{where}: expected {spec.size} elements of {spec.dtype}, got {buffer.size} of {buffer.dtype}"
            )
        if not buffer.flags.c_contiguous:
            raise ArtifactError(f"{where}: the array is not contiguous; copy it first")
        if spec.is_output and not buffer.flags.writeable:
            raise ArtifactError(f"{where}: the array is read-only, and the kernel writes to it")
        address = buffer.ctypes.data if buffer.size else ALIGNMENT  # nothing is accessed there
    if address <= 0 or address % ALIGNMENT:
        raise ArtifactError(f"{where}: address {address:#x} is not a multiple of {ALIGNMENT}; use aligned_array")
    return address


def check_shape(kernel: str, spec: ArgSpec, buffer: Buffer) -> None:
    """Ensure that an array has the shape of the argument, flat for a packed one.

    Raises: ArtifactError.
    """
    shape = spec.buffer_shape
    if not isinstance(buffer, np.ndarray) or buffer.shape == shape:
        return
    form = "" if spec.packing is None else f", the packed form of {list(spec.shape)}; `prepared` makes it"
    raise ArtifactError(
        f"kernel {kernel}, argument {spec.name}: expected the shape {list(shape)}{form}, got {list(buffer.shape)}"
    )


def check_overlap(kernel: str, specs: Sequence[ArgSpec], addresses: Sequence[int]) -> None:
    """Ensure that no written argument shares memory with another.

    Raises: ArtifactError.
    """
    # Code generation marks outputs as noalias, so LLVM may reorder their accesses: overlap would give wrong numbers.
    for (left, left_start), (right, right_start) in combinations(zip(specs, addresses, strict=True), 2):
        written = left.is_output or right.is_output
        if written and left_start < right_start + right.nbytes and right_start < left_start + left.nbytes:
            raise ArtifactError(
                f"kernel {kernel}: the arguments {left.name} and {right.name} share memory, and one of them is written"
            )


def path_of(path: object) -> Path:
    """The path. Raises: OptionError when it is no path, or no file system could have it."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str) or "\0" in text:
        raise OptionError(f"the path of a file is needed, not {path!r:.80}")
    return Path(text)
