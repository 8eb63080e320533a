"""Runs NVIDIA's assembler: PTX to machine code, with the resources each kernel uses.

This is the only module that runs `ptxas`; nothing else needs it.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from pathlib import Path

from retune.compiler.core.errors import LoweringError
from retune.compiler.core.gpu_facts import MOST_REGISTERS, GpuFacts, facts_of
from retune.compiler.ir.kernel import WORD

_SECONDS = 120.0
# An empty module: only the error of an unknown architecture matters.
_NOTHING = ".version 6.0\n.target sm_50\n.address_size 64\n"
_UNKNOWN = "is not defined for option 'gpu-name'"
_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_STACK = re.compile(r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores")
_USED = re.compile(r"Used (?P<registers>\d+) registers")
_BOUNDS = re.compile(
    r"(?P<head>\.entry (?P<name>[\w$]+)\([^{]*?\.maxntid (?P<threads>[\d, ]+)\n[^{]*?\.minnctapersm )(?P<blocks>\d+)"
)
"""The launch bounds of a kernel in PTX."""
_SHARED = re.compile(r"(?P<shared>\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class KernelResources:
    """The resources that ptxas gave a kernel."""

    name: str
    registers: int
    """32-bit registers of a thread."""
    spill_stores: int
    """Bytes that a thread moves to its stack for lack of registers."""
    stack: int
    """Bytes of the stack of a thread."""
    shared: int
    """Bytes of the shared memory of a block."""

    @property
    def spilled_bytes(self) -> int:
        """Bytes in memory that registers should hold, including buffers that are indexed at run time."""
        return max(self.stack, self.spill_stores)


@dataclass(frozen=True, slots=True)
class Assembled:
    """Machine code for one architecture, and its kernels in the order of the PTX."""

    code: bytes
    kernels: tuple[KernelResources, ...]

    @property
    def spilled_bytes(self) -> int:
        """Bytes that a thread of each kernel spills, summed."""
        return sum(kernel.spilled_bytes for kernel in self.kernels)


def assembler() -> str | None:
    """The path of `ptxas`; None without it."""
    return shutil.which("ptxas")


def assembles(arch: str) -> bool:
    """Whether `ptxas` is installed and makes machine code for `arch`: releases drop old and lack new ones."""
    path = assembler()
    return path is not None and _knows(path, arch)


@lru_cache
def _knows(path: str, arch: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="retune-ptxas-") as folder:
        source = Path(folder, "nothing.ptx")
        source.write_text(_NOTHING)
        command = [path, f"-arch={arch}", str(source), "-o", str(Path(folder, "nothing.cubin"))]
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    return _UNKNOWN not in run.stderr


def assemble(text: str, arch: str) -> Assembled:
    """The machine code of PTX for an architecture, such as sm_90.

    Raises: LoweringError when there is no assembler, it takes too long, or refuses the text; with its message.
    """
    path = assembler()
    if path is None:
        raise LoweringError("there is no ptxas on the path; NVIDIA's package nvidia-cuda-nvcc-cu12 has one")
    with tempfile.TemporaryDirectory(prefix="retune-ptxas-") as folder:
        source, product = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text)
        command = [path, "-v", f"-arch={arch}", str(source), "-o", str(product)]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        except subprocess.TimeoutExpired as late:
            raise LoweringError(f"ptxas took more than {_SECONDS:g} s") from late
        if run.returncode:
            raise LoweringError(f"ptxas refuses the code for {arch}: {run.stderr.strip()}")
        return Assembled(product.read_bytes(), resources_in(run.stderr))


def assemble_roomy(text: str, arch: str) -> Assembled:
    """As `assemble`; but where threads spill because a multiprocessor is to have room for several blocks, it may have
    room for fewer, as many as leave enough registers, if that helps.
    """
    first = assemble(text, arch)
    roomier = _roomier(text, {kernel.name: kernel for kernel in first.kernels}, facts_of(arch))
    if roomier == text:
        return first
    again = assemble(roomier, arch)
    # Only if it helps: fewer blocks hide less latency.
    return again if again.spilled_bytes < first.spilled_bytes else first


def _roomier(text: str, kernels: Mapping[str, KernelResources], facts: GpuFacts) -> str:
    """The PTX with room for fewer blocks of the kernels that spill."""

    def with_room(match: re.Match[str]) -> str:
        kernel, blocks = kernels.get(match["name"]), int(match["blocks"])
        if kernel is None or not kernel.spilled_bytes or blocks == 1 or kernel.registers >= MOST_REGISTERS:
            return match[0]
        threads = prod(int(extent) for extent in match["threads"].split(","))
        # A register for each word that a thread had spilled.
        registers = min(MOST_REGISTERS, kernel.registers + -(-kernel.spilled_bytes // WORD))
        fewer = max(1, min(blocks - 1, int(facts.resident(threads, registers, 0))))
        return f"{match['head']}{fewer}"

    return _BOUNDS.sub(with_room, text)


def resources_in(output: str) -> tuple[KernelResources, ...]:
    """The resources of each kernel in the output of `ptxas -v`."""
    starts = [*(match.start() for match in _ENTRY.finditer(output)), len(output)]
    return tuple(_resources(output[start:end]) for start, end in pairwise(starts))


def _resources(output: str) -> KernelResources:
    def number(pattern: re.Pattern[str], group: str) -> int:
        match = pattern.search(output)
        return int(match.group(group)) if match else 0

    name = _ENTRY.search(output)
    return KernelResources(
        name.group("name") if name else "",
        number(_USED, "registers"),
        number(_STACK, "stores"),
        number(_STACK, "stack"),
        number(_SHARED, "shared"),
    )
