"""Statements for tensor cores and asynchronous copies, and the mapping of fragment elements to lanes.

They are immutable and only for GPU kernels, from `sm_80` on. A warp is 32 consecutive threads of a block; all of them
execute a `LoadMatrix` or an `Mma` together, each as its own lane.

    AsyncCopy(target, indices, source, source_indices, count, condition)
                        starts to copy `count` neighbors into shared memory, or zeros where the condition fails
    CommitGroup()       the copies that the thread has started since the last one become a group
    WaitGroup(pending)  the thread waits until at most `pending` of its youngest groups are in flight
    LoadMatrix(target, indices, source, source_indices, count, transposed)
                        8 × 8 halves of shared memory, `count` times, as fragments of a warp
    Mma(kind, sums, at, left, left_at, right, right_at)
                        16 × 8 sums += 16 × depth by depth × 8
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from retune.compiler.dtype import BFLOAT16
from retune.compiler.ir.expr import BOOL, Buffer, Const, Expr

WARP = 32
"""Threads of a warp."""
ROWS, COLUMNS = 16, 8
"""Of the sums that one instruction adds to."""
MATRIX = 8
"""Rows of a matrix that `LoadMatrix` loads, and elements of a row; lane n says where row n % 8 of matrix n // 8 is."""
ROW_BYTES = 16
"""Of such a row, and what its address is a multiple of."""
COPY_BYTES = (4, 8, 16)
"""What one asynchronous copy may copy; its addresses are multiples of it."""
SUM_ELEMENTS = 4
"""Sums that a lane holds of one instruction."""

ALWAYS = Const(True, BOOL)
"""The condition of a copy of what surely lies inside its tensor."""

Place = TypeVar("Place", Expr, int)
"""A number of a lane, or of an element: the layouts are the same for expressions and for numbers."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """A multiplication of 16 × `depth` by `depth` × 8 elements of type `dtype`, summed in float32. A lane holds
    `left_elements` of the first and `right_elements` of the second factor.
    """

    name: str
    dtype: str
    depth: int

    @property
    def left_elements(self) -> int:
        """Elements of a left fragment that a lane holds."""
        return ROWS * self.depth // WARP

    @property
    def right_elements(self) -> int:
        """Elements of a right fragment that a lane holds."""
        return self.depth * COLUMNS // WARP

    @property
    def packed(self) -> int:
        """Neighbors along the depth that share a register."""
        # Two halves share a register of 32 bits, a float32 fills one.
        return 2 if self.depth == ROWS else 1

    def left_place(self, lane: Place, element: int) -> tuple[Place, Place]:
        """Row and depth of an element that a lane holds of the left factor."""
        # PTX ISA, fragments of mma.m16n8k16 and mma.m16n8k8: one formula for both depths.
        register, half = divmod(element, self.packed)
        depth = lane % 4 * self.packed + (half + self.depth // 2 * (register // 2))
        return lane // 4 + MATRIX * (register % 2), depth

    def right_place(self, lane: Place, element: int) -> tuple[Place, Place]:
        """Depth and column of an element that a lane holds of the right factor."""
        # As above; the right factor has its columns where the left one has its rows.
        register, half = divmod(element, self.packed)
        return lane % 4 * self.packed + (half + self.depth // 2 * register), lane // 4


INSTRUCTIONS = {
    "f16": Instruction("m16n8k16", "float16", 16),
    "bf16": Instruction("m16n8k16", BFLOAT16, 16),
    "tf32": Instruction("m16n8k8", "float32", 8),
}
"""By kind. The factors of tf32 are float32 rounded to 10 bits of fraction, to the nearest, halves away from zero."""


def sum_place(lane: Place, element: int) -> tuple[Place, Place]:
    """Row and column of an element that a lane holds of the sums."""
    # PTX ISA, accumulators of mma.m16n8: two columns of the upper eight rows, then of the lower.
    return lane // 4 + MATRIX * (element // 2), lane % 4 * 2 + element % 2


Exprs = tuple[Expr, ...]


class Together:
    """What the threads of a GPU's block or warp do together, without statements inside; no CPU has it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class AsyncCopy(Together):
    """Start to copy `count` neighboring elements of global memory; where `condition` fails nothing is read and zeros
    are copied. What is copied is there for the thread when it has waited, for others after a barrier after that.
    """

    target: Buffer
    indices: Exprs
    source: Buffer
    source_indices: Exprs
    count: int
    condition: Expr = ALWAYS

    def exprs(self) -> Iterator[Expr]:
        """Every whole expression."""
        yield from (*self.indices, *self.source_indices, self.condition)

    def mapped(self, rule: Callable[[Expr], Expr]) -> "AsyncCopy":
        """The statement with `rule` applied to every whole expression."""
        places, sources = tuple(map(rule, self.indices)), tuple(map(rule, self.source_indices))
        return replace(self, indices=places, source_indices=sources, condition=rule(self.condition))

    def __str__(self) -> str:
        source = f"{self.source}[{', '.join(map(str, self.source_indices))}]"
        start = f"copy {self.target}[{', '.join(map(str, self.indices))}] = {source} by {self.count}"
        return start if self.condition == ALWAYS else f"{start} where {self.condition}"


@dataclass(frozen=True, slots=True)
class CommitGroup(Together):
    """The copies that the thread has started since the last one become a group; it may be empty."""

    def exprs(self) -> Iterator[Expr]:
        """Every whole expression."""
        yield from ()

    def mapped(self, rule: Callable[[Expr], Expr]) -> "CommitGroup":  # noqa: ARG002
        """The statement with `rule` applied to every whole expression."""
        return self

    def __str__(self) -> str:
        return "commit copies"


@dataclass(frozen=True, slots=True)
class WaitGroup(Together):
    """The thread goes on when at most `pending` of its groups, the youngest, are under way."""

    pending: int

    def exprs(self) -> Iterator[Expr]:
        """Every whole expression."""
        yield from ()

    def mapped(self, rule: Callable[[Expr], Expr]) -> "WaitGroup":  # noqa: ARG002
        """The statement with `rule` applied to every whole expression."""
        return self

    def __str__(self) -> str:
        return f"wait for copies but {self.pending}"


@dataclass(frozen=True, slots=True)
class LoadMatrix(Together):
    """Load `count` (1, 2 or 4) matrices of 8 × 8 halves. Lane n gives the first element of row n % 8 of matrix n // 8.
    It gets, as elements 2q and 2q + 1 from `indices` on, of matrix q the row n // 4 and the columns n % 4 * 2 and the
    next one; of a transposed one the column n // 4 and those rows.
    """

    target: Buffer
    indices: Exprs
    source: Buffer
    source_indices: Exprs
    count: int
    transposed: bool

    def exprs(self) -> Iterator[Expr]:
        """Every whole expression."""
        yield from (*self.indices, *self.source_indices)

    def mapped(self, rule: Callable[[Expr], Expr]) -> "LoadMatrix":
        """The statement with `rule` applied to every whole expression."""
        return replace(
            self, indices=tuple(map(rule, self.indices)), source_indices=tuple(map(rule, self.source_indices))
        )

    def __str__(self) -> str:
        source = f"{self.source}[{', '.join(map(str, self.source_indices))}]"
        how = " transposed" if self.transposed else ""
        return f"{self.target}[{', '.join(map(str, self.indices))}] = {self.count} matrices{how} of {source}"


@dataclass(frozen=True, slots=True)
class Mma(Together):
    """Add the product of two fragments, each from its place in the thread's own memory on, to the sums."""

    kind: str
    sums: Buffer
    at: Exprs
    left: Buffer
    left_at: Exprs
    right: Buffer
    right_at: Exprs

    @property
    def instruction(self) -> Instruction:
        """What is multiplied."""
        return INSTRUCTIONS[self.kind]

    def exprs(self) -> Iterator[Expr]:
        """Every whole expression."""
        yield from (*self.at, *self.left_at, *self.right_at)

    def mapped(self, rule: Callable[[Expr], Expr]) -> "Mma":
        """The statement with `rule` applied to every whole expression."""
        at, left, right = (tuple(map(rule, each)) for each in (self.at, self.left_at, self.right_at))
        return replace(self, at=at, left_at=left, right_at=right)

    def __str__(self) -> str:
        sums, left, right = (
            f"{buffer}[{', '.join(map(str, place))}]"
            for buffer, place in ((self.sums, self.at), (self.left, self.left_at), (self.right, self.right_at))
        )
        return f"{sums} += {left} * {right} by {self.instruction.name}.{self.kind}"


TensorStmt = AsyncCopy | CommitGroup | WaitGroup | LoadMatrix | Mma
TENSOR_STMTS = (AsyncCopy, CommitGroup, WaitGroup, LoadMatrix, Mma)
"""Statements that tensor cores need besides the others; none has statements inside."""


def accesses(stmt: TensorStmt) -> Iterator[tuple[Buffer, Exprs, int, bool]]:
    """Every (buffer, first element, how many neighbors, whether they are written) that a thread names."""
    match stmt:
        case AsyncCopy():
            yield stmt.target, stmt.indices, stmt.count, True
            yield stmt.source, stmt.source_indices, stmt.count, False
        case LoadMatrix():
            yield stmt.target, stmt.indices, 2 * stmt.count, True
            yield stmt.source, stmt.source_indices, MATRIX, False
        case Mma():
            yield stmt.left, stmt.left_at, stmt.instruction.left_elements, False
            yield stmt.right, stmt.right_at, stmt.instruction.right_elements, False
            yield stmt.sums, stmt.at, SUM_ELEMENTS, True
