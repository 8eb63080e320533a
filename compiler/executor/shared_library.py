"""In: a compiled network. Out: one shared library of its kernels, with everything else of the network at its end.

Always: the file is linked by the system's linker and is written completely or not at all. Its end is a zip as in
`retune.compiler.executor.network`, without object code, with size and SHA-256 of the linked part; both are checked
before any code is loaded.

A program in another language can call the kernels: each is a symbol, see `KernelArtifact`; link with libgomp and libm.
"""

import hashlib
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

from retune.compiler.errors import ArtifactError
from retune.compiler.executor.network import CompiledNetwork, read_network, write_network
from retune.compiler.runtime.archives import DAMAGE, check_archive, too_large
from retune.compiler.runtime.linking import LINKERS, link_objects
from retune.compiler.runtime.loader import LoadedKernels, load_library
from retune.compiler.runtime.published import published

_ELF = b"\x7fELF"
_MEMBER = "library.json"


def is_shared_library(path: str | Path) -> bool:
    """Whether a file starts as a shared library does; a file that cannot be read is none."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:
        return False


def write_shared_library(network: CompiledNetwork, path: Path, linkers: Sequence[str] = LINKERS) -> Path:
    """Link the kernels of a network into the file at `path` and put the rest behind them.

    Raises: ArtifactError when none of the `linkers` is installed, it fails, a kernel calls a Python function or is for
    a GPU, or the file cannot be written.
    """
    for kernel in network.kernels:
        if kernel.device is not None:
            raise ArtifactError(
                f"kernel {kernel.name} is code for {kernel.target}, and a shared library is for a processor; save the "
                "network as .retune"
            )
        if kernel.calls:
            raise ArtifactError(
                f"kernel {kernel.name} calls {kernel.calls[0].function}, a function of Python, which a shared library "
                "cannot hold; save the network as .retune"
            )
    with published(path) as temporary:
        link_objects([kernel.object_code for kernel in network.kernels], temporary, linkers)
        code = temporary.read_bytes()
        with zipfile.ZipFile(temporary, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            about = {"bytes": len(code), "sha256": hashlib.sha256(code).hexdigest()}
            archive.writestr(_MEMBER, json.dumps(about))
            write_network(network, archive, with_code=False)
    return path


def load_shared_library(path: str | Path) -> tuple[CompiledNetwork, LoadedKernels]:
    """The network in a shared library, and its kernels, loaded.

    Raises: ArtifactError when the file is not one that `write_shared_library` made, damaged, of another version, or for
    another kind of processor.
    """
    path = Path(path).absolute()
    try:
        with zipfile.ZipFile(path) as archive:
            check_archive(archive)
            about = json.loads(archive.read(_MEMBER))
            network = read_network(archive, with_code=False)
        with path.open("rb") as file:
            code = file.read(int(about["bytes"]))
        if hashlib.sha256(code).hexdigest() != about["sha256"]:
            raise ArtifactError("the code is damaged: its checksum differs")
        network.verify()
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from error
    except MemoryError as error:
        raise ArtifactError(too_large(path, error)) from error
    except DAMAGE as error:
        raise ArtifactError(
            f"{path} is no library of a network, or is damaged (strip removes what stands at the end): "
            f"{type(error).__name__}: {error}"
        ) from error
    return network, load_library(path, network.kernels, network.metadata)
