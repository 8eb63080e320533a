"""Fuzz cases for the loaders of bytecode and of whole executables of the virtual machine.

Executables are read and verified, and printed; none is run.
"""

import hashlib
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.fuzzing.case import FuzzCase, drawn
from benchmarks.fuzzing.models import small_models
from benchmarks.fuzzing.mutations import (
    LENGTHS,
    Mutate,
    archive_of,
    mutated_bytes,
    mutated_json,
    mutated_members,
    zip_members,
)
from retune.compiler import vm
from retune.compiler.errors import ArtifactError
from retune.compiler.vm.bytecode import decode_image, encode_image
from retune.compiler.vm.executable import Executable
from retune.compiler.vm.instructions import Goto, Invoke, InvokePacked, LoadConst, LoadConsti, Move, Ret, RunRegion
from retune.compiler.vm.program_image import LateBound, Primitive, ProgramImage, VMFunction

_DIGEST = 32
_NUMBERS = (*LENGTHS, -1, -2, -(1 << 31), -(1 << 63))


def _by_hand() -> ProgramImage:
    """Two functions, constants of several types, a primitive."""
    constants = (np.ones((2, 3), np.float32), LateBound("weights"), np.array(True), np.zeros((0, 4), np.int64))
    code = (
        LoadConst(0, 0, 2),
        InvokePacked(0, 1, (0, 1, 2)),
        RunRegion(0, 1, (0, 1, 2)),
        Invoke(1, 3, (2,)),
        LoadConsti(-7, 4),
        Goto(1),
        Ret(3),
    )
    main = VMFunction("main", ("x", "y"), 5, code, (0, 0))
    other = VMFunction("other", ("z",), 2, (Move(0, 1), Ret(1)), (0,))
    return ProgramImage((main, other), constants, (Primitive("add", {"kind": "kernel"}),), constant_devices=(0,) * 4)


def _codes() -> list[bytes]:
    compiled = vm.compile(small_models()[2]).save()[0]
    return [bytes(encode_image(_by_hand())), bytes(compiled)]


def _resealed(data: bytes, draw: Random) -> bytes:
    """Bytes turned under the right checksum."""
    body = mutated_bytes(data[:-_DIGEST], draw)
    return body + hashlib.sha256(body).digest()


def _rewritten(data: bytes, draw: Random) -> bytes:
    """An instruction with another number, or instructions and functions in another order, with all checksums right."""
    image = decode_image(data)
    function = draw.choice(image.functions)
    code = list(function.instructions)
    place = draw.randrange(len(code))
    kind = draw.random()
    if kind < 0.6:
        code[place] = _other_number(code[place], draw)
    elif kind < 0.7:
        del code[place]
    elif kind < 0.8:
        code.insert(place, draw.choice(code))
    elif kind < 0.9:
        draw.shuffle(code)
    changed = replace(function, instructions=tuple(code))
    if kind >= 0.9:
        changed = replace(function, registers=draw.choice(LENGTHS[:8]), params=function.params[1:])
    functions = [changed if each is function else each for each in image.functions]
    if draw.random() < 0.1:
        functions.append(draw.choice(functions))
    return bytes(encode_image(replace(image, functions=tuple(functions))))


def _other_number(instruction: Any, draw: Random) -> Any:
    """One of its fields is another number; strings and types stay."""
    names = [each.name for each in fields(instruction)]
    if not names:
        return instruction
    name = draw.choice(names)
    value: Any = getattr(instruction, name)
    if isinstance(value, tuple) and value and isinstance(value[0], int):
        value = (*value[1:], draw.choice(_NUMBERS))
    elif isinstance(value, int) and not isinstance(value, bool):
        value = draw.choice((value + 1, value - 1, draw.choice(_NUMBERS)))
    other: Any = {name: value}
    return replace(instruction, **other)


def _files() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [
            vm.compile(model).export_library(Path(folder) / f"{number}.rvm").read_bytes()
            for number, model in enumerate((small_models()[0], small_models()[2]))
        ]


def _inside(name: str) -> Mutate:
    if name == "bytecode":
        return _resealed
    return mutated_json if name.endswith(".json") else mutated_bytes


def _rezipped(data: bytes, draw: Random) -> bytes:
    return archive_of(mutated_members(zip_members(data), draw, _inside))


def _load_code(path: Path) -> object:
    return str(Executable.load_exec(path.read_bytes()))


def _load_file(path: Path) -> object:
    return str(Executable.load(path))


CASES = (
    FuzzCase("bytecode", _codes, drawn(_resealed, _rewritten), _load_code, (ArtifactError,), ".code"),
    FuzzCase("executable", _files, drawn(_rezipped), _load_file, (ArtifactError,), ".rvm"),
)
