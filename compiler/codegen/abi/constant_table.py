"""The constants of exported networks as one object, which the code of a library reads as `retune.constants`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llvmlite import ir

from retune.compiler.codegen.abi.c_module import CModule
from retune.compiler.codegen.cpu import compile_module
from retune.compiler.core.errors import ArtifactError
from retune.compiler.core.target import Target
from retune.compiler.runtime.artifact import ALIGNMENT, Array

_MOST_BYTES = 2**31 - 2**26
"""Of constants: kernels and data of a library are at most 2 GiB apart, so that 32-bit offsets reach all of it."""


@dataclass(slots=True)
class ConstantTable:
    """The constants of networks in one block of memory, each at a multiple of 64 bytes."""

    networks: Sequence[Mapping[int, Array]]
    offsets: dict[tuple[int, int], int] = field(default_factory=dict)
    """Where a constant begins, by the numbers of its network and its buffer."""
    nbytes: int = 0

    @classmethod
    def of(cls, networks: Sequence[Mapping[int, Array]]) -> "ConstantTable":
        """Place the constants. Raises: ArtifactError when they are too large for a library."""
        table = cls(networks)
        for index, constants in enumerate(networks):
            for number, array in constants.items():
                table.offsets[index, number] = table.nbytes
                table.nbytes += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        if table.nbytes > _MOST_BYTES:
            raise ArtifactError(
                f"the constants take {table.nbytes / 2**30:.1f} GiB, and a shared library has room for "
                f"{_MOST_BYTES / 2**30:.1f} GiB"
            )
        return table

    def object_code(self, folder: Path, target: Target) -> bytes:
        """The object that has the constants. A temporary file is written into `folder`."""
        path = folder / "constants"
        with path.open("wb") as file:
            for index, constants in enumerate(self.networks):
                for number, array in constants.items():
                    file.seek(self.offsets[index, number])
                    file.write(array.reshape(-1).view("uint8").data)
            # At least one unit, so that `retune.constants` has a place in a library without constants too.
            file.truncate(max(self.nbytes, ALIGNMENT))
        return compile_module(_text(path), target)


def constants_of(module: CModule) -> ir.GlobalVariable:
    """The address of the constants in the module of another object."""
    return module.external("retune.constants", ALIGNMENT)


def _text(file: Path) -> str:
    """The module with the content of a file as `retune.constants`; the assembler reads it."""
    # The assembler copies the file as it is; as LLVM text each byte would take three characters to write and parse.
    lines = (
        ".section .rodata",
        f".balign {ALIGNMENT}",
        ".globl retune.constants",
        ".hidden retune.constants",
        "retune.constants:",
        f'.incbin "{file}"',
    )
    hexadecimal = ("".join(f"\\{byte:02X}" for byte in line.encode()) for line in lines)
    return "\n".join(f'module asm "{line}"' for line in hexadecimal)
