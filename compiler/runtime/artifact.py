"""The result of code generation for one program, as plain data.

It is frozen and picklable and has no handle into LLVM or the operating system; a loader needs nothing else.
"""

import math
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from retune.compiler.dtype import item_bytes
from retune.compiler.errors import ArtifactError
from retune.compiler.packing import Packing

Array = NDArray[Any]

# A cache line of x86, and the width of an AVX-512 register: no aligned vector crosses a line.
ALIGNMENT = 64
"""Every buffer handed to a kernel starts at a multiple of this many bytes."""


@dataclass(frozen=True, slots=True)
class ArgSpec:
    """One buffer of a kernel.

    `shape` is the logical shape in elements; when `packing` is set the buffer holds these elements packed.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_output: bool
    packing: Packing | None = None

    def __post_init__(self) -> None:
        if self.packing is not None:
            try:
                self.packing.check(self.shape)
            except ArtifactError as error:
                raise ArtifactError(f"{self.name}: {error}") from None

    @property
    def buffer_shape(self) -> tuple[int, ...]:
        """The shape of the buffer: flat where it is packed."""
        return self.shape if self.packing is None else (self.size,)

    @property
    def size(self) -> int:
        """Number of elements of the buffer."""
        return math.prod(self.shape) if self.packing is None else self.packing.size

    @property
    def nbytes(self) -> int:
        """Bytes that the kernel may touch."""
        return self.size * item_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class ExternBuffer:
    """An array that a kernel gives to a registered function: dense, and written by the function if `writable`."""

    shape: tuple[int, ...]
    dtype: str
    writable: bool


ExternArgument = ExternBuffer | int | float | str | bool


@dataclass(frozen=True, slots=True)
class ExternCall:
    """A registered function that a kernel calls, and what it is given.

    The kernel calls the C symbol `int32_t SYMBOL(void** buffers)`, which its loader provides: `buffers` holds the
    addresses of the arrays among `args`, in order. 0 = success; anything else ends the kernel with that code.
    """

    symbol: str
    function: str
    args: tuple[ExternArgument, ...]


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One launch of a function on a GPU, with what the assembler said that each of its threads takes, 0 where none was
    asked: 32-bit registers, and bytes that it keeps in memory because these do not suffice. `shared` are the bytes of
    shared memory that the launch gives each block, beyond what is part of the code.
    """

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int = 0
    spilled: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """How code for a GPU is run: what it is ("cubin", or "ptx", which the driver compiles), its launches in order, and
    where in the workspace each of its temporary buffers begins. Every launch takes the addresses of all arguments and
    then of these buffers. `ptx` is what a cubin was made of, for a driver that is older than the assembler.
    """

    kind: str
    launches: tuple[KernelLaunch, ...]
    workspace: tuple[int, ...] = ()
    ptx: str = ""


@dataclass(frozen=True, slots=True)
class KernelArtifact:
    """Object code of one kernel and the buffers it takes. Of a GPU's, `device` says how it is run; the rest of this is
    about CPUs.

    The C symbol is `int32_t NAME(void** buffers, int32_t num_threads)`. `buffers` holds the addresses of `args` in
    order (inputs, then outputs) and after them one workspace of `workspace_bytes` (null when that is 0). 0 = success.
    `calls` are the registered functions that it calls, which the process that loads it must have.
    """

    name: str
    object_code: bytes
    args: tuple[ArgSpec, ...]
    workspace_bytes: int
    target: str
    calls: tuple[ExternCall, ...] = ()
    device: DeviceCode | None = None

    @property
    def inputs(self) -> tuple[ArgSpec, ...]:
        """The arguments that are read, in order."""
        return tuple(arg for arg in self.args if not arg.is_output)

    @property
    def outputs(self) -> tuple[ArgSpec, ...]:
        """The arguments that are written, in order."""
        return tuple(arg for arg in self.args if arg.is_output)


def entry_symbol(name: str) -> str:
    """The C symbol under which the TVM FFI looks for the function `name` of a library."""
    return f"__tvm_ffi_{name}"
