"""Bytecode: what is written is read again, and damage is refused."""

import hashlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.compiler import vm
from retune.compiler.errors import ArtifactError
from retune.compiler.runtime.device import cpu, cuda
from retune.compiler.vm import bytecode
from retune.compiler.vm.bytecode import decode_image, encode_image
from retune.compiler.vm.executable import Executable
from retune.compiler.vm.instructions import (
    Goto,
    Instruction,
    Invoke,
    InvokePacked,
    LoadConst,
    LoadConsti,
    Move,
    Ret,
    RunPlan,
    RunRegion,
)
from retune.compiler.vm.program_image import LateBound, Primitive, ProgramImage, VMFunction

_SPLIT = 32


def small() -> ProgramImage:
    """Two functions, constants of several types, a primitive."""
    constants = (
        np.arange(6, dtype=np.float32).reshape(2, 3),
        LateBound("weights"),
        LateBound.of("kernel", np.ones((2, 3), np.float32)),
        np.array(True),
        np.zeros((0, 4), np.int64),
        np.array([1.5, -2.0], "bfloat16"),
    )
    main = VMFunction(
        "main",
        ("x", "y"),
        5,
        (LoadConst(0, 0, 2), InvokePacked(0, 1, (0, 1, 2)), Invoke(1, 3, (2,)), LoadConsti(-7, 4), Ret(3)),
        (0, 0),
    )
    other = VMFunction("other", ("größe",), 2, (Move(0, 1), Ret(1)), (0,))
    return ProgramImage((main, other), constants, (Primitive("add", {"kind": "kernel"}),), (cpu(0),), (0,) * 6)


def same(one: ProgramImage, two: ProgramImage) -> bool:
    def constant(each: Any) -> Any:
        return each if isinstance(each, LateBound) else (each.dtype.name, each.shape, each.tobytes())

    rest = [(each.functions, each.primitives, each.devices, each.constant_devices) for each in (one, two)]
    return rest[0] == rest[1] and list(map(constant, one.constants)) == list(map(constant, two.constants))


SMALL = bytes(encode_image(small()))


def test_decoded_contents_equal_those_encoded() -> None:
    assert same(decode_image(SMALL), small())
    assert SMALL[:8] == struct.pack("<Q", 0xD225DE2F4214151D)


@given(st.integers(0, len(SMALL) * 8 - 1))
@settings(max_examples=500)
def test_one_flipped_bit_is_refused(bit: int) -> None:
    damaged = bytearray(SMALL)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ArtifactError):
        Executable.load_exec(damaged)


@given(st.integers(0, len(SMALL) - 1))
def test_bytes_that_end_too_early_are_refused(length: int) -> None:
    with pytest.raises(ArtifactError):
        Executable.load_exec(SMALL[:length])


@given(st.integers(8, len(SMALL) - _SPLIT - 1), st.binary(min_size=1, max_size=16))
@settings(max_examples=500)
def test_damage_behind_the_checksum_is_refused_or_read(place: int, junk: bytes) -> None:
    """Damage with a right checksum still gives an error of ours, or an image that holds together."""
    damaged = bytearray(SMALL[:-_SPLIT])
    damaged[place : place + len(junk)] = junk
    damaged += hashlib.sha256(damaged).digest()
    try:
        loaded = Executable.load_exec(damaged)
    except ArtifactError:
        return
    loaded.image.verify()


def test_an_instruction_whose_checksum_differs_is_refused() -> None:
    fields = struct.pack("<q", -7)  # the number that LoadConsti loads
    assert SMALL.count(fields) == 1
    damaged = bytearray(SMALL[:-_SPLIT].replace(fields, struct.pack("<q", -8)))
    damaged += hashlib.sha256(damaged).digest()
    with pytest.raises(ArtifactError, match="checksum of an instruction"):
        decode_image(bytes(damaged))


def test_another_version_is_named() -> None:
    damaged = bytearray(SMALL[:-_SPLIT].replace(b"retune-vm-3", b"retune-vm-9"))
    damaged += hashlib.sha256(damaged).digest()
    with pytest.raises(ArtifactError, match="'retune-vm-9'"):
        decode_image(bytes(damaged))


def test_something_else_is_no_bytecode() -> None:
    with pytest.raises(ArtifactError, match="no bytecode"):
        decode_image(b"PK\x03\x04" * 40)


@pytest.mark.parametrize(
    ("instructions", "message"),
    [
        ((Move(0, 3), Ret(0)), "register 3"),
        ((Move(7, 0), Ret(0)), "register 7"),
        ((Goto(0), Ret(0)), "leads to no instruction"),
        ((Goto(5), Ret(0)), "leads to no instruction"),
        ((Goto(-1), Ret(0)), "leads to no instruction"),
        ((Move(0, 1),), "leads to no instruction"),
        ((Invoke(4, 1, (0,)), Ret(1)), "function 4"),
        ((Invoke(0, 1, (0, 1)), Ret(1)), "takes 1 arguments"),
        ((InvokePacked(0, 0, ()), Ret(0)), "primitive 0"),
        ((RunPlan(0, 0, ()), Ret(0)), "primitive 0"),
        ((RunRegion(0, 2, (0,)), Ret(0)), "primitive 0"),
        ((LoadConst(2, 0, 1), Ret(1)), "constant 2"),
        ((), "no instructions"),
    ],
)
def test_what_an_instruction_names_must_be_there(instructions: tuple[Instruction, ...], message: str) -> None:
    function = VMFunction("main", ("x",), 2, instructions)
    with pytest.raises(ArtifactError, match=message):
        Executable(ProgramImage((function,)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (RunPlan(0, 1, (0, 7)), "register 7"),
        (RunRegion(0, 1, (0, 7)), "register 7"),
        (RunRegion(0, 1, (7, 1)), "register 7"),
        (RunRegion(0, 3, (0, 1)), "3 of its arguments are outputs"),
        (InvokePacked(0, -1, (0, 1)), "-1 of its arguments are outputs"),
    ],
)
def test_what_a_call_of_a_primitive_names_must_be_there(call: Instruction, message: str) -> None:
    function = VMFunction("main", ("x",), 2, (call, Ret(1)))
    with pytest.raises(ArtifactError, match=message):
        Executable(ProgramImage((function,), primitives=(Primitive("add"),)))


def test_contents_must_hold_together() -> None:
    function = VMFunction("main", ("x",), 2, (Ret(0),))
    for wrong, message in [
        (ProgramImage((function, function)), "one name"),
        (ProgramImage((function,), devices=(cuda(0),)), "host"),
        (ProgramImage((function,), (np.zeros(1),), constant_devices=(0, 0)), "one device for every constant"),
        (ProgramImage((function,), (LateBound("a"), LateBound("a"))), "late-bound"),
        (ProgramImage((VMFunction("main", ("x", "x"), 2, (Ret(0),)),)), "parameters have one name"),
        (ProgramImage((VMFunction("main", ("x", "y"), 1, (Ret(0),)),)), "1 registers"),
    ]:
        with pytest.raises(ArtifactError, match=message):
            Executable(wrong)


def test_a_constant_of_another_type_cannot_be_written() -> None:
    function = VMFunction("main", ("x",), 2, (LoadConst(0, 0, 1), Ret(1)))
    with pytest.raises(ArtifactError, match="complex64"):
        Executable(ProgramImage((function,), (np.zeros(2, np.complex64),))).save()


def test_too_little_memory_is_not_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(bytecode, "aligned_array", full)
    with pytest.raises(ArtifactError, match="the bytecode does not fit into the free memory"):
        decode_image(SMALL)


def test_the_old_names_of_the_image_are_deprecated() -> None:
    exe = Executable(small())
    with pytest.warns(DeprecationWarning, match=r"use Executable\.image"):
        assert exe.contents is exe.image
    with pytest.warns(DeprecationWarning, match=r"use vm\.ProgramImage"):
        assert vm.Contents is ProgramImage
