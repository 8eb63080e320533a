"""The result of code generation for one program, as plain data.

It is frozen and picklable and has no handle into LLVM or the operating system; a loader needs nothing else.
"""

import math
from dataclasses import dataclass

from retune.compiler.core.dtype import Array as Array
from retune.compiler.core.dtype import item_bytes
from retune.compiler.core.errors import ArtifactError
from retune.compiler.core.packing import Packing

# A cache line of x86, and the width of an AVX-512 register: no aligned vector crosses a line.
ALIGNMENT = 64
"""Every buffer handed to a kernel starts at a multiple of this many bytes."""


@dataclass(frozen=True, slots=True)
class ArgSpec:
    """One buffer of a kernel.

    `shape` is the logical shape in elements; with `packing` the buffer holds these elements packed.
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
        """The shape of the buffer: flat if packed."""
        return self.shape if self.packing is None else (self.size,)

    @property
    def size(self) -> int:
        return math.prod(self.shape) if self.packing is None else self.packing.size

    @property
    def nbytes(self) -> int:
        """Bytes that the kernel may touch."""
        return self.size * item_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class ExternBuffer:
    """An array argument of a registered function: dense, and written by the function if `writable`."""

    shape: tuple[int, ...]
    dtype: str
    writable: bool


ExternArgument = ExternBuffer | int | float | str | bool


@dataclass(frozen=True, slots=True)
class ExternCall:
    """A kernel's call of a registered function, with its arguments.

    The kernel calls the C symbol `int32_t SYMBOL(void** buffers)`, which its loader provides: `buffers` holds the
    addresses of the arrays among `args`, in order. 0 = success; any other code ends the kernel with that code.
    """

    symbol: str
    function: str
    args: tuple[ExternArgument, ...]


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One launch of a function on a GPU. The assembler reports, per thread, `registers` (32-bit) and `spilled` bytes, 0
    without an assembler. `shared` are the bytes of shared memory per block of the launch, besides static ones.
    """

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int = 0
    spilled: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """How to run code for a GPU: its kind ("cubin", or "ptx", which the driver compiles), its launches in order, and
    the workspace offset of each temporary buffer. Every launch takes the addresses of all arguments and then of these
    buffers. `ptx` is the source of a cubin, for a driver older than the assembler.
    """

    kind: str
    launches: tuple[KernelLaunch, ...]
    workspace: tuple[int, ...] = ()
    ptx: str = ""


@dataclass(frozen=True, slots=True)
class KernelArtifact:
    """Object code of one kernel and its buffers. For a GPU, `device` says how to run it; the following is about CPUs.

    The C symbol is `int32_t NAME(void** buffers, int32_t num_threads)`. `buffers` holds the addresses of `args` in
    order (inputs, then outputs), then a workspace of `workspace_bytes` (null if that is 0). 0 = success. `calls` are
    the registered functions that it calls, which the loading process must have.
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
        return tuple(arg for arg in self.args if not arg.is_output)

    @property
    def outputs(self) -> tuple[ArgSpec, ...]:
        return tuple(arg for arg in self.args if arg.is_output)


def entry_symbol(name: str) -> str:
    """The C symbol of the function `name` of a library of the TVM FFI."""
    return f"__tvm_ffi_{name}"
