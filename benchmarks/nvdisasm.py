"""Runs NVIDIA's disassembler and reads the instructions and loops of each kernel.

This is the only module that runs `nvdisasm` (package nvidia-cuda-nvdisasm). Without it nothing here works, and nothing
else needs it.
"""

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from retune.compiler.core.errors import LoweringError

_SECONDS = 120.0
_SECTION = re.compile(r"^\.text\.(?P<name>[\w$]+):\s*$")
_LABEL = re.compile(r"^(?P<label>\.L[\w$]+):\s*$")
_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]+\*/\s+(?:@(?P<guard>!?U?P[T\d]+)\s+)?(?P<name>[A-Z][\w.]*)\s*(?P<operands>[^;]*);"
)
_TARGET = re.compile(r"`\((?P<label>\.L[\w$]+)\)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its `name` with all modifiers, such as LDS.128, its operands as they are written, the `guard`
    that may keep it from being done, and the `label` that it may go on from.
    """

    name: str
    operands: str = ""
    guard: str = ""
    label: str = ""

    @property
    def base(self) -> str:
        """The name without modifiers."""
        return self.name.partition(".")[0]

    @property
    def bits(self) -> int:
        """Bits that each thread moves, of an instruction that moves memory; 32 where it does not say."""
        sizes = [int(part.lstrip("US")) for part in self.name.split(".") if part.lstrip("US").isdigit()]
        if self.base == "LDSM":  # so many matrices, of each of which a thread gets a register
            return 32 * sizes[-1]
        return sizes[0] if sizes else 32


@dataclass(frozen=True, slots=True)
class CodeLoop:
    """The instructions from number `first` on up to and with number `last`, which goes back to the first one."""

    first: int
    last: int

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last

    def holds(self, other: "CodeLoop") -> bool:
        """Whether another loop is inside of this one."""
        return other != self and self.first <= other.first and other.last <= self.last


@dataclass(frozen=True)
class KernelCode:
    """The machine code of one kernel; `labels` are the numbers of the instructions after them."""

    name: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]

    @cached_property
    def loops(self) -> tuple[CodeLoop, ...]:
        """Every loop once, in the order of their beginnings, an outer one before those inside of it. What goes back to
        itself and does nothing is none.
        """
        ends: dict[int, int] = {}
        for number, one in enumerate(self.instructions):
            start = self.labels.get(one.label, len(self.instructions))
            if one.base == "BRA" and start < number:
                ends[start] = max(ends.get(start, 0), number)
        return tuple(CodeLoop(first, last) for first, last in sorted(ends.items()))

    def around(self, loop: CodeLoop) -> tuple[CodeLoop, ...]:
        """The loops that a loop stands in, the outermost first."""
        return tuple(one for one in self.loops if one.holds(loop))

    def innermost(self) -> tuple[CodeLoop, ...]:
        """The loops that hold no others."""
        return tuple(one for one in self.loops if not any(one.holds(other) for other in self.loops))

    def own(self, loop: CodeLoop) -> Iterator[Instruction]:
        """The instructions of a loop that are not those of a loop inside."""
        inside = [one for one in self.loops if loop.holds(one)]
        for number in range(loop.first, loop.last + 1):
            if not any(number in one for one in inside):
                yield self.instructions[number]


@lru_cache
def disassembler() -> str | None:
    """Where `nvdisasm` is: on the path, or where NVIDIA's package for Python keeps it; None without one."""
    found = shutil.which("nvdisasm")
    spec = None if found else importlib.util.find_spec("nvidia")
    homes = spec.submodule_search_locations if spec and spec.submodule_search_locations else ()
    kept = (path for home in homes for path in sorted(Path(home).glob("*/bin/nvdisasm")))
    return found or next(map(str, kept), None)


def disassemble(code: bytes) -> tuple[KernelCode, ...]:
    """The kernels in a cubin.

    Raises: LoweringError when there is no disassembler, or it refuses the code; in its own words.
    """
    path = disassembler()
    if path is None:
        raise LoweringError("there is no nvdisasm; NVIDIA's package nvidia-cuda-nvdisasm has one")
    with tempfile.TemporaryDirectory(prefix="retune-nvdisasm-") as folder:
        source = Path(folder, "kernel.cubin")
        source.write_bytes(code)
        command = [path, "-c", str(source)]
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if run.returncode:
        raise LoweringError(f"nvdisasm refuses the code: {run.stderr.strip()}")
    return kernels_in(run.stdout)


def kernels_in(text: str) -> tuple[KernelCode, ...]:
    """The kernels of a disassembly, in its order; what only fills up the end of one is left out."""
    found: list[tuple[str, list[Instruction], dict[str, int]]] = []
    for line in text.splitlines():
        if section := _SECTION.match(line):
            found.append((section["name"], [], {}))
        elif found and (mark := _LABEL.match(line)):
            found[-1][2][mark["label"]] = len(found[-1][1])
        elif found and (one := _INSTRUCTION.match(line)):
            target = _TARGET.search(one["operands"])
            label = target["label"] if target else ""
            if one["name"] != "NOP":
                found[-1][1].append(Instruction(one["name"], one["operands"].strip(), one["guard"] or "", label))
    return tuple(KernelCode(name, tuple(instructions), labels) for name, instructions, labels in found)
