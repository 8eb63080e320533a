"""Reads and writes the image of an executable as bytes. Damage is refused, nothing is unpickled.

Numbers are little-endian; a string is its length (uint64) and UTF-8, a list its length (uint64) and its entries.

    uint64   magic                       text      version, which must be known
    devices  [type, number: int32]       int64     number of the host among them
    names    [text], the functions       constants [0: int64, tensor | 1: int64, late-bound], then [device: int64]
    primitives [text], then their attributes [[key, value]]
    functions  [name, registers: int64, instructions: int64, parameters [text], devices [int64],
                then each instruction as a list of int64: checksum, opcode, fields]
    32 bytes SHA-256 of all that stands before

In an exported library these bytes are one part of the archive, and constants are others. They stay a format of their
own because `Executable.save` gives code as bytes, as TVM does, and because code of earlier versions is read: a second
form of the same instructions would need a second reader.

A late-bound constant is its name, element type (text), shape ([int64]) and the SHA-256 of its content in hexadecimal
digits, all but the name empty where any array will do.
A tensor is two uint64 (a magic, 0), device, rank (int32), code and bits (uint8) and lanes (uint16) of its elements,
shape (int64), bytes (int64), data.
"""

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from retune.compiler.dtype import item_bytes
from retune.compiler.errors import ArtifactError
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.device import Device, cpu
from retune.compiler.vm.element_types import dtype_name, dtype_numbers
from retune.compiler.vm.instructions import Instruction, checksum, decode, encode
from retune.compiler.vm.program_image import Constant, LateBound, Primitive, ProgramImage, VMFunction

# TVM's numbers for bytecode of its virtual machine and for arrays.
_MAGIC = 0xD225DE2F4214151D
_TENSOR_MAGIC = 0xDD5E40F096B4A13F
VERSION = "retune-vm-3"
_READABLE = ("retune-vm-2", VERSION)
"""Version 2 has no `run_plan` and `run_region`."""
_ARRAY, _NAME = 0, 1
_DIGEST = 32
# NumPy's limit.
_MOST_DIMENSIONS = 64
T = TypeVar("T")


def encode_image(image: ProgramImage) -> bytearray:
    """The image as bytes. Raises: ArtifactError when a constant is of a type that they cannot hold."""
    out = _Writer()
    out.pack("Q", _MAGIC)
    out.text(VERSION)
    out.many(image.devices, out.device)
    out.pack("q", 0)
    out.many(image.functions, lambda function: out.text(function.name))
    out.many(image.constants, out.constant)
    out.many(image.constant_devices, lambda number: out.pack("q", number))
    out.many(image.primitives, lambda primitive: out.text(primitive.name))
    # Sorted, so that equal executables are equal bytes.
    out.many(image.primitives, lambda primitive: out.many(sorted(primitive.attrs.items()), out.pair))
    out.many(image.functions, out.function)
    out.data += hashlib.sha256(out.data).digest()
    return out.data


def decode_image(data: bytes) -> ProgramImage:
    """The image that `encode_image` wrote; they are not verified.

    Raises: ArtifactError when the bytes are not from it, of another version, damaged or cut off.
    """
    if len(data) < 8 + _DIGEST or data[:8] != struct.pack("<Q", _MAGIC):
        raise ArtifactError("these bytes are no bytecode of a virtual machine: Executable.save did not write them")
    # A memoryview: its slices copy nothing, and constants may be most of the bytes.
    source = _Reader(memoryview(data)[: len(data) - _DIGEST], 8)
    try:
        version = source.text()
        if version not in _READABLE:
            raise ArtifactError(f"the bytecode has version {version!r}; this Retune reads {' and '.join(_READABLE)}")
        # After the version, which says who wrote it, and before anything else is read.
        if hashlib.sha256(source.data).digest() != data[-_DIGEST:]:
            raise ArtifactError("the bytecode is damaged or cut off: its checksum differs")
        return _image(source)
    except MemoryError as error:
        raise ArtifactError("the bytecode does not fit into the free memory") from error
    except (ValueError, struct.error, OverflowError) as error:
        raise ArtifactError(f"the bytecode cannot be read: {error}") from error


def _image(source: "_Reader") -> ProgramImage:
    devices = tuple(source.many(source.device))
    if source.number("q") != 0 or devices[:1] != (cpu(0),):
        raise ArtifactError("the host of the bytecode is not its first device, cpu(0)")
    names = source.many(source.text)
    constants = tuple(source.many(source.constant))
    placed = tuple(source.many(lambda: source.number("q")))
    primitives = source.many(source.text)
    attrs = source.many(lambda: dict(source.many(source.pair)))
    functions = tuple(source.many(source.function))
    if names != [function.name for function in functions] or len(primitives) != len(attrs) or source.left:
        raise ArtifactError("the bytecode contradicts itself: names and functions are not as many, or not alike")
    table = tuple(Primitive(name, attr) for name, attr in zip(primitives, attrs, strict=True))
    return ProgramImage(functions, constants, table, devices, placed)


class _Writer:
    """Bytes as they grow."""

    def __init__(self) -> None:
        self.data = bytearray()

    def pack(self, kind: str, *numbers: int) -> None:
        self.data += struct.pack(f"<{kind}", *numbers)

    def text(self, text: str) -> None:
        encoded = text.encode()
        self.pack("Q", len(encoded))
        self.data += encoded

    def pair(self, pair: tuple[str, str]) -> None:
        for text in pair:
            self.text(text)

    def many(self, entries: Sequence[T], write: Callable[[T], None]) -> None:
        self.pack("Q", len(entries))
        for each in entries:
            write(each)

    def device(self, device: Device) -> None:
        self.pack("ii", device.device_type, device.device_id)

    def constant(self, constant: Constant) -> None:
        if isinstance(constant, LateBound):
            self.pack("q", _NAME)
            self.pair((constant.name, constant.dtype))
            self.many(constant.shape, lambda extent: self.pack("q", extent))
            self.text(constant.digest)
            return
        self.pack("q", _ARRAY)
        self.pack("QQii", _TENSOR_MAGIC, 0, 1, 0)
        code, bits, lanes = dtype_numbers(constant.dtype.name)
        self.pack("iBBH", constant.ndim, code, bits, lanes)
        self.pack(f"{constant.ndim}q", *constant.shape)
        self.pack("q", constant.nbytes)
        little = constant.astype(constant.dtype.newbyteorder("<"), copy=False)
        self.data += np.ascontiguousarray(little).tobytes()

    def function(self, function: VMFunction) -> None:
        self.text(function.name)
        self.pack("qq", function.registers, len(function.instructions))
        self.many(function.params, self.text)
        self.many(function.param_devices, lambda number: self.pack("q", number))
        for instruction in function.instructions:
            fields = encode(instruction)
            opcode = instruction.opcode
            self.many((checksum(opcode, fields), opcode, *fields), lambda number: self.pack("q", number))


class _Reader:
    """Bytes as they are read; ValueError where they end too early."""

    def __init__(self, data: memoryview, place: int) -> None:
        self.data = data
        self._place = place

    @property
    def left(self) -> int:
        return len(self.data) - self._place

    def take(self, count: int) -> memoryview:
        if not 0 <= count <= self.left:
            raise ValueError(f"it ends after {len(self.data)} bytes, {count - self.left} too early")
        self._place += count
        return self.data[self._place - count : self._place]

    def numbers(self, kind: str) -> tuple[int, ...]:
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))

    def number(self, kind: str) -> int:
        return self.numbers(kind)[0]

    def count(self) -> int:
        """How many entries follow: each is at least a byte."""
        count = self.number("Q")
        if count > self.left:
            raise ValueError(f"{count} entries cannot stand in {self.left} bytes")
        return count

    def text(self) -> str:
        return bytes(self.take(self.count())).decode()

    def pair(self) -> tuple[str, str]:
        return self.text(), self.text()

    def many(self, read: Callable[[], T]) -> list[T]:
        return [read() for _ in range(self.count())]

    def device(self) -> Device:
        return Device(*self.numbers("ii"))

    def constant(self) -> Constant:
        tag = self.number("q")
        if tag == _NAME:
            name, dtype = self.pair()
            return LateBound(name, dtype, tuple(self.many(lambda: self.number("q"))), self.text())
        if tag != _ARRAY:
            raise ValueError(f"a constant has the tag {tag}")
        return self.tensor()

    def tensor(self) -> Array:
        magic, zero, *device = self.numbers("QQii")
        if (magic, zero, device) != (_TENSOR_MAGIC, 0, [1, 0]):
            raise ValueError("a constant is no array on the host")
        rank, *kind = self.numbers("iBBH")
        if not 0 <= rank <= _MOST_DIMENSIONS:
            raise ValueError(f"a constant has {rank} dimensions")
        dtype, shape = dtype_name(*kind), self.numbers(f"{rank}q")
        content = np.frombuffer(self.take(self.number("q")), np.uint8)
        if min(shape, default=0) < 0:
            raise ValueError(f"a constant has the shape {list(shape)}")
        count = 1
        # In Python's integers: a product in int64 could overflow to the right size.
        for extent in shape:
            count *= extent
        if content.nbytes != count * item_bytes(dtype):
            raise ValueError(f"a constant of {dtype}{list(shape)} has {content.nbytes} bytes")
        # Copied: kernels want multiples of 64 bytes, and the content stands anywhere among the bytes.
        array = aligned_array(shape, dtype)
        array.reshape(-1).view(np.uint8)[...] = content
        return array

    def function(self) -> VMFunction:
        name = self.text()
        registers, count = self.numbers("qq")
        params = tuple(self.many(self.text))
        devices = tuple(self.many(lambda: self.number("q")))
        if not 0 <= count <= self.left:
            raise ValueError(f"a function of {count} instructions")
        instructions = tuple(self.instruction() for _ in range(count))
        return VMFunction(name, params, registers, instructions, devices)

    def instruction(self) -> Instruction:
        count = self.count()
        if count < 2:
            raise ValueError("an instruction without an opcode")
        expected, opcode, *fields = self.numbers(f"{count}q")
        if checksum(opcode, fields) != expected:
            raise ValueError("the checksum of an instruction differs")
        return decode(opcode, fields)
