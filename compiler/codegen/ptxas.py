"""In: PTX. Out: what NVIDIA's assembler makes of it: machine code, and what each kernel takes of a multiprocessor.

Always: the one place that runs `ptxas`; without one on the path nothing here works and nothing else needs it.
"""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from compiler.errors import LoweringError

_SECONDS = 120.0
_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_STACK = re.compile(r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill")
_USED = re.compile(r"Used (?P<registers>\d+) registers")
_SHARED = re.compile(r"(?P<shared>\d+) bytes smem")


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What a thread of a kernel takes: 32-bit `registers`, bytes of `stack`; `spill_stores` and `spill_loads` are the
    bytes that it moves there and back because registers do not suffice. And the bytes of `shared` memory of a block.
    """

    name: str
    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int

    @property
    def spilled(self) -> int:
        """Bytes in memory that registers should hold: buffers that are indexed at run time are among them."""
        return max(self.stack, self.spill_stores)


@dataclass(frozen=True, slots=True)
class Assembled:
    """Machine code for one architecture, and its kernels in the order of the PTX."""

    code: bytes
    kernels: tuple[KernelResources, ...]

    @property
    def spilled(self) -> int:
        """Those of all kernels together."""
        return sum(kernel.spilled for kernel in self.kernels)


def assembler() -> str | None:
    """Where `ptxas` is; None without one."""
    return shutil.which("ptxas")


def assemble(text: str, arch: str) -> Assembled:
    """The machine code of PTX for an architecture, such as sm_90.

    Raises: LoweringError when there is no assembler, it takes too long, or refuses the text; in its own words.
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


def resources_in(said: str) -> tuple[KernelResources, ...]:
    """What `ptxas -v` said of each kernel."""
    starts = [*(match.start() for match in _ENTRY.finditer(said)), len(said)]
    return tuple(_resources(said[start:end]) for start, end in pairwise(starts))


def _resources(said: str) -> KernelResources:
    def number(pattern: re.Pattern[str], group: str) -> int:
        found = pattern.search(said)
        return int(found.group(group)) if found else 0

    name = _ENTRY.search(said)
    return KernelResources(
        name.group("name") if name else "",
        number(_USED, "registers"),
        number(_STACK, "stores"),
        number(_STACK, "loads"),
        number(_STACK, "stack"),
        number(_SHARED, "shared"),
    )
