"""The OpenMP runtime that runs the parallel loops of kernels.

It is loaded at most once per process and path, is visible to code loaded later, and has libgomp's C interface
(`GOMP_parallel`), which GNU's, LLVM's and Intel's runtimes all offer. Threads of libgomp wait as
`retune.compiler.core.config.bound_spinning` says, and end before the process forks. A libgomp loaded by PyTorch or
another library is shared and keeps its settings: two pools of threads would compete for the cores.
"""

import ctypes
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from retune.compiler.core import config
from retune.compiler.core.errors import ArtifactError

_LOG = logging.getLogger(__name__)

_REQUIRED = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_set_num_threads")
_OPTIONAL = ("omp_get_num_threads", "omp_get_max_threads")
# OpenMP 5.0: a soft pause ends the threads and keeps settings, which a hard one (2) would reset.
_PAUSE, _PAUSE_SOFT = "omp_pause_resource_all", 1
_SYSTEM_NAMES: tuple[str, ...] = ("libgomp.so.1",)
_OTHER_NAMES = ("libiomp5.so", "libomp.so.5", "libomp.so", "libomp.dylib")


@dataclass(frozen=True, slots=True)
class OpenMPRuntime:
    """A loaded OpenMP runtime: its path, and the addresses of its functions by C name."""

    path: str
    symbols: Mapping[str, int]


@lru_cache(maxsize=8)
def openmp_runtime(path: str = "") -> OpenMPRuntime:
    """Load an OpenMP runtime: the library at `path` if given, otherwise the first that loads.

    The order: the system's libgomp, the copy in the xgboost package, libiomp5, libomp.

    Raises: ArtifactError when none can be loaded; the text says what was tried and what to install.
    """
    failures = []
    for candidate in (path,) if path else _candidates():
        try:
            runtime = _load(candidate)
        except (OSError, AttributeError) as error:
            failures.append(f"{candidate}: {error}")
            continue
        _LOG.debug("OpenMP runtime: %s", candidate)
        return runtime
    raise ArtifactError(
        "no OpenMP runtime found; install libgomp (Debian and Ubuntu: libgomp1, Fedora: libgomp) "
        f"or the xgboost package; tried: {'; '.join(failures)}"
    )


def _candidates() -> Iterator[str]:
    # The system's first: other libraries of the process may use it, and a second pool would compete for the cores.
    yield from _SYSTEM_NAMES
    yield from _bundled_with_xgboost()
    yield from _OTHER_NAMES


def _bundled_with_xgboost() -> Iterator[str]:
    """Paths of the libgomp inside the installed xgboost wheel. The package itself is not imported."""
    from importlib import metadata  # takes longer to import than the rest of the runtime

    try:
        files = metadata.files("xgboost") or ()
    except metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name.startswith("libgomp") and ".so" in file.name:
            # Not imported: that would load the whole package, and its own settings.
            yield str(file.locate())


def _load(path: str) -> OpenMPRuntime:
    with config.bound_spinning():
        # Global, so that kernels loaded as shared libraries find its functions by name.
        library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    symbols = {name: _address(library, name) for name in _REQUIRED}
    for name in _OPTIONAL:
        if hasattr(library, name):
            symbols[name] = _address(library, name)
    if hasattr(library, _PAUSE):
        # A forked child has only the forking thread, and libgomp would wait for the others. They end before the fork,
        # and the next kernel starts new ones, in the parent and in the child.
        os.register_at_fork(before=lambda: library[_PAUSE](_PAUSE_SOFT))
    return OpenMPRuntime(path, MappingProxyType(symbols))


def _address(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None, "a symbol that was found has an address"
    return address
