"""Fuzz cases for the loaders of programs and of whole executables of the virtual machine.

Executables are read and verified, and printed; none is run.
"""

import tempfile
from pathlib import Path
from random import Random

from benchmarks.fuzzing.case import FuzzCase, drawn
from benchmarks.fuzzing.models import small_models
from benchmarks.fuzzing.mutations import Mutate, archive_of, mutated_bytes, mutated_json, mutated_members, zip_members
from retune.compiler import vm
from retune.compiler.core.errors import ArtifactError
from retune.compiler.vm.executable import Executable


def _programs() -> list[bytes]:
    return [bytes(vm.compile(model).save()[0]) for model in small_models()]


def _files() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [
            vm.compile(model).export_library(Path(folder) / f"{number}.rvm").read_bytes()
            for number, model in enumerate((small_models()[0], small_models()[2]))
        ]


def _inside(name: str) -> Mutate:
    if name.startswith("regions/") and name.endswith(".bin"):
        return _changed_region
    return mutated_json if name.endswith(".json") else mutated_bytes


def _changed_region(data: bytes, draw: Random) -> bytes:
    """A region of symbolic shapes is an archive, one of ONNX nodes a message."""
    return _rezipped(data, draw) if data.startswith(b"PK") else mutated_bytes(data, draw)


def _rezipped(data: bytes, draw: Random) -> bytes:
    return archive_of(mutated_members(zip_members(data), draw, _inside))


def _load_program(path: Path) -> object:
    return str(Executable.load_exec(path.read_bytes()))


def _load_file(path: Path) -> object:
    return str(Executable.load(path))


CASES = (
    FuzzCase("program", _programs, drawn(_rezipped), _load_program, (ArtifactError,), ".program"),
    FuzzCase("executable", _files, drawn(_rezipped), _load_file, (ArtifactError,), ".rvm"),
)
