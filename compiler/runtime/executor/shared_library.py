"""A compiled network as one shared library: its kernels, linked, and the rest of the network in an archive after them.

The system's linker links the file. The archive is that of `retune.compiler.runtime.executor.network`, without object
code, with length and SHA-256 of the linked part, which are checked before any code is loaded.

A program in another language can call the kernels: each is a symbol, see `KernelArtifact`; link with libgomp and libm.
"""

from collections.abc import Sequence
from pathlib import Path

from retune.compiler.runtime.archive import Archive, append_archive, reject_damage
from retune.compiler.runtime.atomic_write import atomic_write
from retune.compiler.runtime.executor.network import VERSION, CompiledNetwork, network_parts, read_network
from retune.compiler.runtime.ffi.linking import LINKERS, link_objects
from retune.compiler.runtime.loader import ELF, LoadedKernels, load_library

_KIND = "network library"


def is_shared_library(path: str | Path) -> bool:
    """Whether a file starts like a shared library; False for an unreadable file."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(ELF)) == ELF
    except OSError:
        return False


def write_shared_library(network: CompiledNetwork, path: Path, linkers: Sequence[str] = LINKERS) -> Path:
    """Link the kernels of a network into the file at `path` and append the rest.

    Raises: ArtifactError when none of the `linkers` is installed, it fails, a kernel calls a Python function or is for
    a GPU, or the file cannot be written.
    """
    network.require_cpu_code("a shared library")
    with atomic_write(path) as temporary:
        link_objects([kernel.object_code for kernel in network.kernels], temporary, linkers)
        # The loader of ELF reads only the parts named by its headers, so appended data does not disturb it.
        append_archive(temporary, _KIND, VERSION, network_parts(network, with_code=False))
    return path


def load_shared_library(path: str | Path) -> tuple[CompiledNetwork, LoadedKernels]:
    """The network in a shared library, with its kernels loaded.

    Raises: ArtifactError when the file is not from `write_shared_library`, damaged, of another version, or for another
    instruction set.
    """
    path = Path(path).absolute()
    with reject_damage("library of a network (strip removes what stands at the end)", path):
        # Before dlopen, which would run the constructors of a damaged or foreign file.
        archive = Archive(path, _KIND, VERSION)
        network = read_network(archive, with_code=False)
        network.verify()
    return network, load_library(path, network.kernels, network.metadata)
