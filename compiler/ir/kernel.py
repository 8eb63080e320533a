"""GPU kernels in loop IR, and the function that runs them with numbers of blocks and threads.

All are immutable; `str()` is deterministic. A kernel's body has no loops over blocks or threads: each thread runs it
with its own `blockIdx` and `threadIdx`. Shared buffers belong to the block, local and register buffers to the thread.
Kernels run one after another; each sees the writes of earlier kernels.
"""

from dataclasses import dataclass
from math import prod

from retune.compiler.core.gpu_facts import STATIC_SHARED
from retune.compiler.ir.alignment import VECTOR_BYTES, start_alignment
from retune.compiler.ir.expr import Buffer, Var
from retune.compiler.ir.interval import Ranges
from retune.compiler.ir.stmt import BLOCK_KINDS, THREAD_KINDS, Allocate, LoopFunction, LoopKind, lines_of, walk_stmt

Extents = tuple[int, int, int]
"""Along x, y and z."""

INDICES = {kind: Var(str(kind)) for kind in (*BLOCK_KINDS, *THREAD_KINDS)}
"""The number of the block, and of the thread in it, along each dimension."""

WORD = 4
"""Bytes of a register."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A launch: `body.body` in `block` threads of `grid` blocks; `body` names its buffers."""

    body: LoopFunction
    grid: Extents
    block: Extents

    @property
    def name(self) -> str:
        return self.body.name

    @property
    def threads(self) -> int:
        return prod(self.block)

    @property
    def sizes(self) -> dict[LoopKind, int]:
        """The number of blocks and of threads along each dimension."""
        return dict(zip((*BLOCK_KINDS, *THREAD_KINDS), (*self.grid, *self.block), strict=True))

    @property
    def ranges(self) -> Ranges:
        return {INDICES[kind]: (0, size - 1) for kind, size in self.sizes.items()}

    def bytes_of(self, *scopes: str) -> int:
        """Bytes of the buffers of `scopes`: of a block if shared, of a thread otherwise."""
        return sum(buffer.nbytes for buffer in self.allocated if buffer.scope in scopes)

    @property
    def allocated(self) -> tuple[Buffer, ...]:
        """The buffers that live in the block or in a thread."""
        return tuple(stmt.buffer for stmt in walk_stmt(self.body.body) if isinstance(stmt, Allocate))

    @property
    def shared_offsets(self) -> dict[Buffer, int]:
        """The offset of each shared buffer in a block's shared memory, in bytes; aligned and without gaps."""
        offsets, end = {}, 0
        shared = (buffer for buffer in self.allocated if buffer.scope == "shared")
        # By falling alignment, so that no gap is needed.
        for buffer in sorted(dict.fromkeys(shared), key=start_alignment, reverse=True):
            offsets[buffer] = end
            end += buffer.nbytes
        return offsets

    @property
    def dynamic_shared(self) -> int:
        """Bytes of shared memory that a launch gives each block: all, in vectors, or 0 within the static limit."""
        nbytes = self.bytes_of("shared")
        return nbytes + -nbytes % VECTOR_BYTES if nbytes > STATIC_SHARED else 0

    @property
    def registers(self) -> int:
        """An estimate of the 32-bit registers of a thread: those of its buffers; the rest depends on the code."""
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
    """Buffers in global memory that pass values from kernel to kernel."""
    outputs: int
    """How many of the parameters are outputs."""
    kernels: tuple[Kernel, ...]

    def __str__(self) -> str:
        params = ", ".join(f"{b.name}: {b.dtype}{list(b.shape)}" for b in self.params)
        lines = [f"def {self.name}({params}):"]
        lines.extend(f"  workspace {b.name}: {b.dtype}{list(b.shape)}" for b in self.workspace)
        return "\n".join([*lines, *map(str, self.kernels)])
