"""GPU kernels in loop IR, and the function that runs them with numbers of blocks and threads.

All are immutable; `str()` is deterministic. A kernel's body has no loops over blocks or threads: each thread runs it
with its own `blockIdx` and `threadIdx`. Shared buffers belong to the block, local and register ones to the thread.
Kernels run one after another; each sees what earlier ones wrote.
"""

from dataclasses import dataclass
from math import prod

from retune.compiler.gpu_facts import STATIC_SHARED
from retune.compiler.ir.alignment import VECTOR_BYTES, start_alignment
from retune.compiler.ir.expr import Buffer, Var
from retune.compiler.ir.interval import Ranges
from retune.compiler.ir.stmt import BLOCK_KINDS, THREAD_KINDS, Allocate, LoopFunction, LoopKind, lines_of, walk_stmt

Extents = tuple[int, int, int]
"""Along x, y and z."""

INDICES = {kind: Var(str(kind)) for kind in (*BLOCK_KINDS, *THREAD_KINDS)}
"""The number of the block, and of the thread in it, along each dimension."""

WARP = 32
"""Threads that run in step, on every NVIDIA GPU."""

WORD = 4
"""Bytes of a register."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What one launch runs: `body.body` in `block` threads of `grid` blocks; `body` says what its buffers are."""

    body: LoopFunction
    grid: Extents
    block: Extents

    @property
    def name(self) -> str:
        """What the kernel is called."""
        return self.body.name

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return prod(self.block)

    @property
    def sizes(self) -> dict[LoopKind, int]:
        """The number of blocks and of threads along each dimension."""
        return dict(zip((*BLOCK_KINDS, *THREAD_KINDS), (*self.grid, *self.block), strict=True))

    @property
    def ranges(self) -> Ranges:
        """The ranges of `blockIdx` and `threadIdx`."""
        return {INDICES[kind]: (0, size - 1) for kind, size in self.sizes.items()}

    def bytes_of(self, *scopes: str) -> int:
        """Bytes of the buffers of these scopes, of a block if shared, of a thread otherwise."""
        return sum(buffer.nbytes for buffer in self.allocated if buffer.scope in scopes)

    @property
    def allocated(self) -> tuple[Buffer, ...]:
        """The buffers that live in the block or in a thread."""
        return tuple(stmt.buffer for stmt in walk_stmt(self.body.body) if isinstance(stmt, Allocate))

    @property
    def shared_places(self) -> dict[Buffer, int]:
        """Where in the shared memory of a block each buffer begins, in bytes; all are aligned, nothing lies between."""
        places, end = {}, 0
        shared = (buffer for buffer in self.allocated if buffer.scope == "shared")
        # What is aligned most comes first: the rest is of whole elements each, so that nothing need be left out.
        for buffer in sorted(dict.fromkeys(shared), key=start_alignment, reverse=True):
            places[buffer] = end
            end += buffer.nbytes
        return places

    @property
    def dynamic_shared(self) -> int:
        """Bytes of shared memory that a launch has to give each block: all of it, in whole vectors, or, where a block
        has enough, none.
        """
        nbytes = self.bytes_of("shared")
        return nbytes + -nbytes % VECTOR_BYTES if nbytes > STATIC_SHARED else 0

    @property
    def registers(self) -> int:
        """An estimate of the 32-bit registers of a thread: what it holds in buffers; the rest depends on the code."""
        return -(-self.bytes_of("local") // WORD)

    def __str__(self) -> str:
        head = f"kernel {self.name}<<<{self.grid}, {self.block}>>>"
        return "\n".join([f"{head} shared {self.bytes_of('shared')} bytes:", *lines_of(self.body.body, 1)])


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """Kernels that run in order."""

    name: str
    params: tuple[Buffer, ...]
    """The inputs, then the outputs."""
    workspace: tuple[Buffer, ...]
    """Buffers in global memory that one kernel leaves to another."""
    outputs: int
    """How many of the parameters are outputs."""
    kernels: tuple[Kernel, ...]

    def __str__(self) -> str:
        params = ", ".join(f"{b.name}: {b.dtype}{list(b.shape)}" for b in self.params)
        lines = [f"def {self.name}({params}):"]
        lines.extend(f"  workspace {b.name}: {b.dtype}{list(b.shape)}" for b in self.workspace)
        return "\n".join([*lines, *map(str, self.kernels)])
