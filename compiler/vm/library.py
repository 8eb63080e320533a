"""In: what the primitives of an executable need. Out: a `VMLibrary`, and files of it.

Always: data only, no pickle; a file is written completely or not at all, and refused when it is damaged. It is a zip:

    library.json      format, facts about the network, tuned programs, regions by name, arrays that are bound late
    kernels.json      name, arguments, packing, workspace of every kernel
    kernels/NAME.o    its object code
    regions/N.bin     a region, see `retune.compiler.graph.region`
    arrays.params     the arrays that regions read, see `retune.compiler.executor.params`
    bytecode          the executable's own part, in the file of a whole executable
"""

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retune.compiler.dtype import item_bytes
from retune.compiler.errors import ArtifactError
from retune.compiler.executor.params import load_param_dict, save_param_dict
from retune.compiler.runtime.archives import DAMAGE, check_archive, too_large
from retune.compiler.runtime.arguments import is_thread_count
from retune.compiler.runtime.artifact import Array, KernelArtifact
from retune.compiler.runtime.artifact_rows import kernel_of, kernel_row
from retune.compiler.runtime.paths import path_of
from retune.compiler.runtime.processor import check_processor
from retune.compiler.runtime.published import published
from retune.compiler.vm.contents import LateBound

_FORMAT = 2


@dataclass(frozen=True, slots=True)
class StoredRegion:
    """A region as data; `kind` says who reads it. `fixed` are inputs of it that no call passes: they are always the
    array of that name.
    """

    kind: str
    data: bytes
    fixed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TunedProgram:
    """A record of some task: its key, steps and seconds, and the record's own name."""

    workload_key: str
    steps: str
    seconds: float
    record_id: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class VMLibrary:
    """Kernels; regions that are compiled when their shapes are known, with the `arrays` that they read and the tuned
    `programs` that may serve them; `late` are arrays by name that are missing from these until they are bound; `about`
    is JSON: target, threads, parameters and what kernels were built from.
    """

    kernels: tuple[KernelArtifact, ...] = ()
    regions: Mapping[str, StoredRegion] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)
    late: Mapping[str, LateBound] = field(default_factory=dict)
    programs: tuple[TunedProgram, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    def check_machine(self) -> None:
        """See that this machine's processor can run the code. Raises: ArtifactError."""
        check_processor("the executable", self.about)

    def export_library(self, path: str | Path, bytecode: bytes | None = None) -> Path:
        """Write the library, and the bytecode if given, into one file.

        Raises: ArtifactError when that fails; OptionError for what is no path.
        """
        path = path_of(path)
        names = list(self.regions)
        rows = [{"name": name, "kind": one.kind, "fixed": dict(one.fixed)} for name, one in self.regions.items()]
        programs = [[one.workload_key, one.steps, one.seconds, one.record_id] for one in self.programs]
        late = [[name, one.name, one.dtype, list(one.shape), one.digest] for name, one in self.late.items()]
        facts = {"format": _FORMAT, "about": dict(self.about), "programs": programs, "regions": rows, "late": late}
        pack = zipfile.ZIP_DEFLATED
        with published(path) as temporary, zipfile.ZipFile(temporary, "x", pack, compresslevel=1) as out:
            out.writestr("library.json", json.dumps(facts, indent=1))
            out.writestr("kernels.json", json.dumps([kernel_row(kernel) for kernel in self.kernels], indent=1))
            for kernel in self.kernels:
                out.writestr(f"kernels/{kernel.name}.o", kernel.object_code)
            for number, name in enumerate(names):
                out.writestr(f"regions/{number}.bin", self.regions[name].data)
            out.writestr("arrays.params", bytes(save_param_dict(self.arrays)))
            if bytecode is not None:
                out.writestr("bytecode", bytecode)
        return path

    @classmethod
    def load(cls, path: str | Path) -> "VMLibrary":
        """What `export_library` wrote. Raises: ArtifactError when the file is damaged or of another version."""
        return cls.load_with_code(path)[0]

    @classmethod
    def load_with_code(cls, path: str | Path) -> "tuple[VMLibrary, bytes | None]":
        """The library, and the bytecode when the file has it. Raises: as `load`."""
        path = path_of(path)
        try:
            with zipfile.ZipFile(path) as archive:
                return cls._read(archive), _member(archive, "bytecode")
        except FileNotFoundError as error:
            raise ArtifactError(f"no such file: {path}") from error
        except ArtifactError as error:
            raise ArtifactError(f"{path}: {error}") from error
        except MemoryError as error:
            raise ArtifactError(too_large(path, error)) from error
        except DAMAGE as error:
            raise ArtifactError(
                f"{path} is no library of a virtual machine, or is damaged: {type(error).__name__}: {error}"
            ) from error

    @classmethod
    def _read(cls, archive: zipfile.ZipFile) -> "VMLibrary":
        check_archive(archive)
        facts = json.loads(archive.read("library.json"))
        if facts["format"] != _FORMAT:
            raise ArtifactError(f"format {facts['format']!r}; this Retune reads format {_FORMAT}")
        rows = json.loads(archive.read("kernels.json"))
        kernels = tuple(kernel_of(row, archive.read(f"kernels/{row['name']}.o")) for row in rows)
        regions = {}
        for number, row in enumerate(facts["regions"]):
            content = archive.read(f"regions/{number}.bin")
            regions[str(row["name"])] = StoredRegion(str(row["kind"]), content, _texts(row["fixed"]))
        arrays = load_param_dict(archive.read("arrays.params"))
        late = _late(facts["late"])
        return cls(kernels, regions, arrays, late, _programs(facts["programs"]), _about(facts["about"]))


def _programs(rows: Sequence[Sequence[Any]]) -> tuple[TunedProgram, ...]:
    return tuple(TunedProgram(str(key), str(steps), float(time), str(record)) for key, steps, time, record in rows)


def _late(rows: Sequence[Sequence[Any]]) -> dict[str, LateBound]:
    """Arrays that are bound late, by their names among the others. Raises: ArtifactError."""
    late = {
        str(name): LateBound(str(bound), str(dtype), tuple(shape), str(digest))
        for name, bound, dtype, shape, digest in rows
    }
    if not all(type(extent) is int for one in late.values() for extent in one.shape):
        raise ArtifactError("its facts about arrays that are bound late make no sense")
    return late


def _about(row: Mapping[str, Any]) -> dict[str, Any]:
    """The facts, as far as a machine relies on them checked. Raises: ArtifactError."""
    about = dict(row)
    threads, needs, params = about.get("threads", 1), about.get("needs", []), about.get("params", {})
    if not is_thread_count(threads) or not isinstance(needs, list) or not all(isinstance(each, str) for each in needs):
        raise ArtifactError("its facts about threads or the processor make no sense")
    for name, described in params.items():
        for param, (dtype, dims) in described.items():
            known = dtype is None or item_bytes(dtype)
            whole = dims is None or all(dim is None or type(dim) in (int, str) for dim in dims)
            if not known or not whole:
                raise ArtifactError(f"its facts about the parameter {param} of {name} make no sense")
    return about


def _texts(row: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in row.items()}


def _member(archive: zipfile.ZipFile, name: str) -> bytes | None:
    return archive.read(name) if name in archive.namelist() else None
