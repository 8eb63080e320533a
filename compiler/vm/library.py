"""The library of an executable: what its primitives need, and its file.

The file is an archive (`retune.compiler.runtime.archive`) of

    library.json      facts about the network, tuned programs, regions and arrays by name, arrays that are bound late
    kernels.json      name, arguments, packing, workspace of every kernel
    kernels/NAME.o    its object code
    regions/N.bin     a region, see `retune.compiler.graph.region`
    arrays/N.npy      array number N that regions read
    bytecode          the executable's own part, in the file of a whole executable, and
    constants/N.npy   its constant number N
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retune.compiler.dtype import item_bytes
from retune.compiler.errors import ArtifactError
from retune.compiler.measure.record import BestProgram
from retune.compiler.runtime.archive import VM_EXECUTABLE, Archive, refusing_damage, write_archive
from retune.compiler.runtime.arguments import is_thread_count
from retune.compiler.runtime.artifact import Array, KernelArtifact
from retune.compiler.runtime.artifact_rows import kernel_of, kernel_row
from retune.compiler.runtime.cpu_features import check_cpu
from retune.compiler.runtime.paths import path_of
from retune.compiler.vm.program_image import LateBound

KIND, VERSION = VM_EXECUTABLE, 3


@dataclass(frozen=True, slots=True)
class StoredRegion:
    """A region as data; `kind` says who reads it. `fixed` are inputs of it that no call passes: they are always the
    array of that name.
    """

    kind: str
    data: bytes
    fixed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class VMLibrary:
    """What primitives need. A region is the plan of a network of known shapes, or is compiled when its shapes are
    known: then it reads `arrays`, and the tuned `programs` may serve it. `late` are arrays by name that are missing
    until they are bound; `about` is JSON: target, threads, parameters and what kernels were built from.
    """

    kernels: tuple[KernelArtifact, ...] = ()
    regions: Mapping[str, StoredRegion] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)
    late: Mapping[str, LateBound] = field(default_factory=dict)
    programs: tuple[BestProgram, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    def check_machine(self) -> None:
        """Check that this machine's CPU can run the code. Raises: ArtifactError."""
        check_cpu("the executable", self.about)

    def export_library(self, path: str | Path) -> Path:
        """Write the library into a file.

        Raises: ArtifactError when that fails; OptionError for what is no path.
        """
        path = path_of(path)
        write_archive(path, KIND, VERSION, self.parts())
        return path

    def parts(self) -> dict[str, object]:
        """The parts of the library for an archive."""
        rows = [{"name": name, "kind": one.kind, "fixed": dict(one.fixed)} for name, one in self.regions.items()]
        facts = {
            "about": dict(self.about),
            "programs": [[one.task_key, one.steps, one.seconds, one.record_id] for one in self.programs],
            "regions": rows,
            "arrays": list(self.arrays),
            "late": [[name, one.name, one.dtype, list(one.shape), one.digest] for name, one in self.late.items()],
        }
        return {
            "library.json": facts,
            "kernels.json": [kernel_row(kernel) for kernel in self.kernels],
            **{f"kernels/{kernel.name}.o": kernel.object_code for kernel in self.kernels},
            **{f"regions/{number}.bin": one.data for number, one in enumerate(self.regions.values())},
            **{f"arrays/{number}.npy": array for number, array in enumerate(self.arrays.values())},
        }

    @classmethod
    def load(cls, path: str | Path) -> "VMLibrary":
        """What `export_library` wrote. Raises: ArtifactError when the file is damaged or of another version."""
        path = path_of(path)
        with refusing_damage("library of a virtual machine", path):
            return cls.read(Archive(path, KIND, VERSION))

    @classmethod
    def read(cls, archive: Archive) -> "VMLibrary":
        """The library in an archive. Raises: ArtifactError; an error of `DAMAGE` when it is damaged."""
        facts = archive.json("library.json")
        arrays = {str(name): archive.array(f"arrays/{number}.npy") for number, name in enumerate(facts["arrays"])}
        rows = archive.json("kernels.json")
        kernels = tuple(kernel_of(row, archive.blob(f"kernels/{row['name']}.o")) for row in rows)
        regions = {}
        for number, row in enumerate(facts["regions"]):
            content = archive.blob(f"regions/{number}.bin")
            regions[str(row["name"])] = StoredRegion(str(row["kind"]), content, _texts(row["fixed"]))
        late = _late(facts["late"])
        return cls(kernels, regions, arrays, late, _programs(facts["programs"]), _about(facts["about"]))


def _programs(rows: Sequence[Sequence[Any]]) -> tuple[BestProgram, ...]:
    return tuple(BestProgram(str(key), str(steps), float(time), str(record)) for key, steps, time, record in rows)


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
        raise ArtifactError("its facts about threads or the CPU make no sense")
    for name, described in params.items():
        for param, (dtype, dims) in described.items():
            known = dtype is None or item_bytes(dtype)
            whole = dims is None or all(dim is None or type(dim) in (int, str) for dim in dims)
            if not known or not whole:
                raise ArtifactError(f"its facts about the parameter {param} of {name} make no sense")
    return about


def _texts(row: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in row.items()}
