"""In: a plan, kernels, constants and facts about them. Out: a `CompiledNetwork`, saved as one `.retune` file.

Always: a zip of JSON, `.npy` arrays and object code; no pickle, written to a temporary name and renamed when complete.

    plan.json         see `retune.compiler.executor.plan`
    metadata.json     version, target, tool versions; coverage: which record every task was built from
    kernels.json      name, arguments, packing, workspace of every kernel
    kernels/NAME.o    its object code
    constants/N.npy   the constant of buffer N, packed as its kernel wants it
"""

import json
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np

from retune.compiler.dtype import BFLOAT16, item_bytes
from retune.compiler.errors import ArtifactError
from retune.compiler.executor.plan import BufferKind, Plan
from retune.compiler.runtime.archives import DAMAGE, check_archive, too_large
from retune.compiler.runtime.artifact import Array, KernelArtifact
from retune.compiler.runtime.artifact_rows import kernel_of, kernel_row
from retune.compiler.runtime.buffers import aligned_array, constant_array, frozen
from retune.compiler.runtime.published import published

FORMAT_VERSION = 1

_BLOCK = 1 << 20
"""Bytes of a constant that are read at a time."""
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Origin(StrEnum):
    """Where a kernel's program comes from."""

    RECORD = "record"  # a measured record of the very task
    TRANSFER = "transfer"  # a record of a similar task, fitted to this one's sizes
    GUESS = "guess"  # what the search would try first
    CONTEXT = "context"  # a dispatch context that was entered
    DEFAULT = "default"  # the default schedule


@dataclass(frozen=True, slots=True)
class Coverage:
    """What one task was built from: `record_id` of a measured program, or None where there is none.

    `note` says why a record was not used where there was one. `weight` is how often the kernel runs, `flops` how many
    operations a call has.
    """

    task: str
    workload_key: str
    weight: int
    tunable: bool
    record_id: str | None = None
    note: str = ""
    origin: str = Origin.DEFAULT
    flops: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class CompiledNetwork:
    """A network as data: `constants` are by buffer number of the plan, `metadata` is JSON (target, versions).

    Constants that are not read-only, contiguous and aligned yet are copied, so that executors read them where they are.
    """

    plan: Plan
    kernels: tuple[KernelArtifact, ...]
    constants: Mapping[int, Array]
    coverage: tuple[Coverage, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take hold of the constants."""
        held = {number: constant_array(np.asarray(array)) for number, array in self.constants.items()}
        object.__setattr__(self, "constants", held)

    def verify(self, functions: Collection[str] = ()) -> None:
        """Check that plan, kernels and constants fit each other; `functions` may be called beside the kernels.

        Raises: ArtifactError that names what does not.
        """
        self.plan.verify({kernel.name: kernel for kernel in self.kernels}, functions)
        for number, buffer in enumerate(self.plan.buffers):
            if buffer.kind is not BufferKind.CONSTANT or buffer.storage != number:
                continue
            array = self.constants.get(number)
            if array is None:
                raise ArtifactError(f"network {self.plan.name}: the constant {buffer.name} is missing")
            if array.nbytes != buffer.nbytes or array.dtype != np.dtype(buffer.dtype):
                raise ArtifactError(
                    f"network {self.plan.name}: the constant {buffer.name} is {array.dtype.name}{list(array.shape)}, "
                    f"the plan says {buffer.dtype}{list(buffer.shape)}"
                )

    def save(self, path: str | Path) -> Path:
        """Write one file and return its path; an existing file is replaced at once or not at all.

        Raises: ArtifactError when it cannot be written.
        """
        path = Path(path)
        with (
            published(path) as temporary,
            zipfile.ZipFile(temporary, "x", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        ):
            write_network(self, archive)
        return path

    @classmethod
    def load(cls, path: str | Path) -> "CompiledNetwork":
        """Read what `save` wrote.

        Raises: ArtifactError when the file is missing, damaged, inconsistent, or of another version.
        """
        path = Path(path)
        try:
            with zipfile.ZipFile(path) as archive:
                network = read_network(archive)
        except FileNotFoundError as error:
            raise ArtifactError(f"no such file: {path}") from error
        except ArtifactError as error:
            raise ArtifactError(f"{path}: {error}") from error
        except MemoryError as error:
            raise ArtifactError(too_large(path, error)) from error
        except DAMAGE as error:
            raise ArtifactError(
                f"{path} is no compiled network, or is damaged: {type(error).__name__}: {error}"
            ) from error
        try:
            network.verify()
        except ArtifactError as error:
            raise ArtifactError(f"{path}: {error}") from error
        return network


def write_network(network: CompiledNetwork, archive: zipfile.ZipFile, *, with_code: bool = True) -> None:
    """Write all parts of a network into an archive; object code only if asked for."""
    coverage = [asdict(each) for each in network.coverage]
    metadata = {"format": FORMAT_VERSION, "metadata": network.metadata, "coverage": coverage}
    archive.writestr("plan.json", network.plan.dumps())
    archive.writestr("metadata.json", json.dumps(metadata, indent=1))
    archive.writestr("kernels.json", json.dumps([kernel_row(kernel) for kernel in network.kernels], indent=1))
    for kernel in network.kernels if with_code else ():
        archive.writestr(f"kernels/{kernel.name}.o", kernel.object_code)
    for number, array in network.constants.items():
        with archive.open(zipfile.ZipInfo(f"constants/{number}.npy"), "w", force_zip64=True) as entry:
            np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)


def read_network(archive: zipfile.ZipFile, *, with_code: bool = True) -> CompiledNetwork:
    """The network in an archive, which is not verified yet; without `with_code` its kernels have no object code.

    Raises: ArtifactError when the format is another; an error of `DAMAGE` when it is damaged.
    """
    check_archive(archive)
    about = json.loads(archive.read("metadata.json"))
    if about["format"] != FORMAT_VERSION:
        raise ArtifactError(f"format {about['format']!r}; this Retune reads format {FORMAT_VERSION}")
    plan = Plan.loads(archive.read("plan.json").decode())
    kernels = tuple(
        kernel_of(row, archive.read(f"kernels/{row['name']}.o") if with_code else b"")
        for row in json.loads(archive.read("kernels.json"))
    )
    constants: dict[int, Array] = {}
    for name in archive.namelist():
        if name.startswith("constants/"):
            with archive.open(name) as entry:
                constants[int(Path(name).stem)] = _read_constant(entry)
    coverage = tuple(Coverage(**row) for row in about["coverage"])
    return CompiledNetwork(plan, kernels, constants, coverage, dict(about["metadata"]))


def _read_constant(entry: IO[bytes]) -> Array:
    """An array in NumPy's file format, read into the memory that kernels will read it from.

    Raises: ValueError when it is damaged, or no array of numbers.
    """
    version = np.lib.format.read_magic(entry)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of NumPy's file format")
    try:
        shape, turned, dtype = _HEADERS[version](entry)
    except (TokenError, SyntaxError) as error:
        raise ValueError(f"no header of NumPy's file format: {error}") from None
    if dtype.hasobject or not dtype.isnative:
        raise ValueError(f"elements of the type {dtype.str} are no numbers of this machine")
    # NumPy's file format has no name for bfloat16: it keeps the bytes.
    bare = dtype.kind == "V" and dtype.itemsize == item_bytes(BFLOAT16)
    array = aligned_array(shape[::-1] if turned else shape, BFLOAT16 if bare else dtype.name)
    room, done = array.reshape(-1).view(np.uint8), 0
    while done < len(room):
        block = entry.read(min(_BLOCK, len(room) - done))
        if not block:
            raise ValueError(f"it ends after {done} of {len(room)} bytes")
        room[done : done + len(block)] = np.frombuffer(block, np.uint8)
        done += len(block)
    return constant_array(frozen(array).T if turned else frozen(array))
