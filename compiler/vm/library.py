"""The library of an executable: the kernels that its program calls, tuned programs, facts about both; and its file.

The file is an archive (`retune.compiler.runtime.archive`) of

    library.json      facts about the kernels, tuned programs
    its kernels       see `retune.compiler.runtime.kernel_archive`

and, in the file of a whole executable, of the parts of `retune.compiler.vm.saved_program`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retune.compiler.core.errors import ArtifactError
from retune.compiler.core.json_reader import JsonObject
from retune.compiler.measure.task_program import TaskProgram
from retune.compiler.runtime.archive import VM_EXECUTABLE, Archive, reject_damage, write_archive
from retune.compiler.runtime.arguments import is_thread_count, path_of
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.executor.network import check_cpu
from retune.compiler.runtime.kernel_archive import kernel_parts, read_kernels

KIND, VERSION = VM_EXECUTABLE, 4


@dataclass(frozen=True, slots=True, eq=False)
class VMLibrary:
    """What a program needs beside its statements: `kernels` that plans call, tuned `programs` for regions that are
    compiled when their shapes are known; `about` is JSON: target, threads, what kernels were built from.
    """

    kernels: tuple[KernelArtifact, ...] = ()
    programs: tuple[TaskProgram, ...] = ()
    about: JsonObject = field(default_factory=dict)

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
        programs = [[row.task_key, row.steps, row.seconds, row.record_id] for row in self.programs]
        return {
            "library.json": {"about": dict(self.about), "programs": programs},
            **kernel_parts(self.kernels),
        }

    @classmethod
    def load(cls, path: str | Path) -> "VMLibrary":
        """What `export_library` wrote. Raises: ArtifactError when the file is damaged or of another version."""
        path = path_of(path)
        with reject_damage("library of a virtual machine", path):
            return cls.read(Archive(path, KIND, VERSION))

    @classmethod
    def read(cls, archive: Archive) -> "VMLibrary":
        """The library in an archive. Raises: ArtifactError; an error of `DAMAGE` when it is damaged."""
        facts = archive.json("library.json")
        return cls(read_kernels(archive), _programs(facts["programs"]), _about(facts["about"]))


def _programs(rows: Sequence[Sequence[Any]]) -> tuple[TaskProgram, ...]:
    return tuple(TaskProgram(str(key), str(steps), float(time), str(record)) for key, steps, time, record in rows)


def _about(row: JsonObject) -> dict[str, object]:
    """The facts; `check_machine` checks those about the CPU. Raises: ArtifactError when the threads make no sense."""
    about = dict(row)
    if not is_thread_count(about.get("threads", 1)):
        raise ArtifactError("its number of threads makes no sense")
    return about
