"""Statements for tensor cores and asynchronous copies, and the mapping of fragment elements to lanes.

They are immutable and only for GPU kernels, from `sm_80` on; the last three only for `sm_90a`. A warp is 32 consecutive
threads of a block; all of them execute a `LoadMatrix`, an `Mma` or a `TransposeQuad` together, each as its own lane. A
warpgroup is four consecutive warps, from a multiple of four on; all of them execute a `WarpgroupMma` or a
`WarpgroupWait` together.

    AsyncCopy(target, indices, source, source_indices, count, condition)
                        starts to copy `count` neighbors into shared memory, or zeros where the condition fails
    CommitGroup()       the copies that the thread has started since the last one become a group
    WaitGroup(pending)  the thread waits until at most `pending` of its youngest groups are in flight
    LoadMatrix(target, indices, source, source_indices, count, transposed)
                        8 rows of 16 bytes of shared memory, `count` times, as fragments of a warp
    Mma(kind, sums, at, left, left_at, right, right_at)
                        16 × 8 sums += 16 × depth by depth × 8
    TransposeQuad(target, indices, source, source_indices)
                        the lanes of a quad hand each other pairs of halves
    ProxyFence()        what the thread has stored in shared memory is there for a later `WarpgroupMma`
    WarpgroupMma(kind, sums, at, left, left_at, right, right_at, shape, left_layout, right_layout)
                        starts to add products of matrices in shared memory to the sums of four warps
    WarpgroupWait(pending, sums, at, count)
                        of what the warpgroup has started at most the last `pending` are not done
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from retune.compiler.core.dtype import BFLOAT16, item_bytes
from retune.compiler.ir.expr import BOOL, Buffer, Const, Expr

WARP = 32
"""Threads that run in step, on every NVIDIA GPU."""
ROWS, COLUMNS = 16, 8
"""Rows and columns of the sums of an instruction."""
MATRIX = 8
"""Rows of a matrix that `LoadMatrix` loads; lane n says where row n % 8 of matrix n // 8 is."""
ROW_BYTES = 16
"""Bytes of such a row, which also divide its address."""
REGISTER_BYTES = 4
"""Bytes of such a row that a lane gets."""
COPY_BYTES = (4, 8, 16)
"""Sizes in bytes of an asynchronous copy; they divide its addresses."""
SUM_ELEMENTS = 4
"""Sums of an instruction that a lane has."""
QUAD = 4
"""Consecutive lanes, from a multiple of 4 on, that hold a row of the sums of an instruction: a pair each."""
PAIR = 2
"""Neighbors in a pair."""

GROUP_WARPS = 4
"""Warps of a warpgroup."""
GROUP = GROUP_WARPS * WARP
"""Threads of a warpgroup."""
GROUP_ROWS = GROUP_WARPS * ROWS
"""Rows of the sums of a warpgroup's instruction."""
GROUP_COLUMNS = 256
"""The most columns of them."""
CORE = 8
"""Lines of a core matrix, and elements of a line, which are neighbors: 16 bytes of halves."""
SWIZZLED = (16, 32, 64)
"""Halves in a line of a factor of a warpgroup whose pieces can be swizzled."""

ALWAYS = Const(True, BOOL)
"""The condition of a copy that never leaves its tensor."""

Number = TypeVar("Number", Expr, int)
"""The number of a lane or an element: the layouts hold for expressions and for ints."""


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
        return ROWS * self.depth // WARP

    @property
    def right_elements(self) -> int:
        return self.depth * COLUMNS // WARP

    @property
    def packed(self) -> int:
        """Neighbors along the depth that share a register."""
        # Two halves share a register of 32 bits, a float32 fills a register.
        return REGISTER_BYTES // item_bytes(self.dtype)

    @property
    def row_elements(self) -> int:
        """Elements of a row of a matrix that `LoadMatrix` loads; a factor is two of them deep."""
        return ROW_BYTES // item_bytes(self.dtype)

    def left_position(self, lane: Number, element: int) -> tuple[Number, Number]:
        """(row, depth) of the `element`-th element of the left factor in `lane`."""
        # PTX ISA, fragments of mma.m16n8k16 and mma.m16n8k8: one formula for both depths.
        register, half = divmod(element, self.packed)
        depth = lane % 4 * self.packed + (half + self.depth // 2 * (register // 2))
        return lane // 4 + MATRIX * (register % 2), depth

    def right_position(self, lane: Number, element: int) -> tuple[Number, Number]:
        """(depth, column) of the `element`-th element of the right factor in `lane`."""
        # As above; the right factor has its columns where the left factor has its rows.
        register, half = divmod(element, self.packed)
        return lane % 4 * self.packed + (half + self.depth // 2 * register), lane // 4


INSTRUCTIONS = {
    "f16": Instruction("m16n8k16", "float16", 16),
    "bf16": Instruction("m16n8k16", BFLOAT16, 16),
    "tf32": Instruction("m16n8k8", "float32", 8),
}
"""By kind. Factors of tf32 are float32 rounded to 10 bits of fraction, to the nearest, halves away from zero."""
HALF_STEP = 1 << 12
"""Half of the last bit that tf32 keeps of a float32, as an integer: adding it before truncation rounds."""


Exprs = tuple[Expr, ...]


class Together:
    """A statement that threads of a GPU's block or warp execute together, without statements inside."""

    __slots__ = ()


class TensorStmt(Together):
    """A statement of this module."""

    __slots__ = ()

    def exprs(self) -> Iterator[Expr]:
        """The expressions of the statement; none unless a class has some."""
        yield from ()

    def map_exprs(self, rule: Callable[[Expr], Expr]) -> Self:  # noqa: ARG002
        """The statement with `rule` applied to its expressions."""
        return self


@dataclass(frozen=True, slots=True)
class Transfer(TensorStmt):
    """Moves elements; the indices are those of the first element on either side."""

    target: Buffer
    indices: Exprs
    source: Buffer
    source_indices: Exprs

    def exprs(self) -> Iterator[Expr]:
        yield from (*self.indices, *self.source_indices)

    def map_exprs(self, rule: Callable[[Expr], Expr]) -> Self:
        targets, sources = tuple(map(rule, self.indices)), tuple(map(rule, self.source_indices))
        return replace(self, indices=targets, source_indices=sources)

    def side_texts(self) -> tuple[str, str]:
        """The first elements of target and source, as text."""
        return (
            f"{self.target}[{', '.join(map(str, self.indices))}]",
            f"{self.source}[{', '.join(map(str, self.source_indices))}]",
        )


@dataclass(frozen=True, slots=True)
class AsyncCopy(Transfer):
    """Start to copy `count` neighboring elements of global memory; where `condition` fails nothing is read and zeros
    are copied. The thread sees the copy after a wait, other threads after a barrier after that. Copies of 16 bytes
    bypass the first-level cache.
    """

    count: int
    condition: Expr = ALWAYS

    def exprs(self) -> Iterator[Expr]:
        yield from (*self.indices, *self.source_indices, self.condition)

    def map_exprs(self, rule: Callable[[Expr], Expr]) -> Self:
        return replace(Transfer.map_exprs(self, rule), condition=rule(self.condition))

    def __str__(self) -> str:
        target, source = self.side_texts()
        start = f"copy {target} = {source} by {self.count}"
        return start if self.condition == ALWAYS else f"{start} where {self.condition}"


@dataclass(frozen=True, slots=True)
class CommitGroup(TensorStmt):
    """The copies that the thread has started since the last one become a group; it may be empty."""

    def __str__(self) -> str:
        return "commit copies"


@dataclass(frozen=True, slots=True)
class WaitGroup(TensorStmt):
    """The thread goes on when at most `pending` of its groups, the youngest, are under way."""

    pending: int

    def __str__(self) -> str:
        return f"wait for copies but {self.pending}"


@dataclass(frozen=True, slots=True)
class LoadMatrix(Transfer):
    """Load `count` (1, 2 or 4) matrices of 8 rows of 16 bytes: 8 × 8 halves or 8 × 4 float32. Lane n gives the first
    element of row n % 8 of matrix n // 8. Of matrix q of halves it gets row n // 4, columns n % 4 * 2 and the next, as
    elements 2q and 2q + 1 from `indices` on; if `transposed`, rows and columns are swapped. Of float32 it gets row n //
    4, column n % 4 as element q; only halves can be transposed.
    """

    count: int
    transposed: bool

    @property
    def row_elements(self) -> int:
        return ROW_BYTES // item_bytes(self.source.dtype)

    @property
    def lane_elements(self) -> int:
        return REGISTER_BYTES // item_bytes(self.source.dtype)

    def __str__(self) -> str:
        target, source = self.side_texts()
        how = " transposed" if self.transposed else ""
        return f"{target} = {self.count} matrices{how} of {source}"


@dataclass(frozen=True, slots=True)
class Multiplication(TensorStmt):
    """Adds the product of two factors to sums; `at`, `left_at` and `right_at` are their first elements."""

    kind: str
    sums: Buffer
    at: Exprs
    left: Buffer
    left_at: Exprs
    right: Buffer
    right_at: Exprs

    @property
    def instruction(self) -> Instruction:
        """What a warp multiplies at once."""
        return INSTRUCTIONS[self.kind]

    def exprs(self) -> Iterator[Expr]:
        yield from (*self.at, *self.left_at, *self.right_at)

    def map_exprs(self, rule: Callable[[Expr], Expr]) -> Self:
        at, left, right = (tuple(map(rule, each)) for each in (self.at, self.left_at, self.right_at))
        return replace(self, at=at, left_at=left, right_at=right)

    def operand_texts(self) -> tuple[str, str, str]:
        """The first elements of the sums and of the factors, as text."""
        sums, left, right = (
            f"{buffer}[{', '.join(map(str, indices))}]"
            for buffer, indices in ((self.sums, self.at), (self.left, self.left_at), (self.right, self.right_at))
        )
        return sums, left, right


@dataclass(frozen=True, slots=True)
class Mma(Multiplication):
    """Add the product of two fragments in the thread's own memory to the sums."""

    def __str__(self) -> str:
        sums, left, right = self.operand_texts()
        return f"{sums} += {left} * {right} by {self.instruction.name}.{self.kind}"


@dataclass(frozen=True, slots=True)
class TransposeQuad(Transfer):
    """Lane l of a quad gets, as pair n of 16-bit elements, pair l of lane n's four from `source_indices` on."""

    def __str__(self) -> str:
        target, source = self.side_texts()
        return f"{target} = pairs of a quad of {source}"


@dataclass(frozen=True, slots=True)
class ProxyFence(TensorStmt):
    """A `WarpgroupMma` after a later barrier sees what the thread has stored in shared memory; it sees asynchronous
    copies that were waited for without a fence.
    """

    def __str__(self) -> str:
        return "proxy fence"


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """The layout of a factor of a `WarpgroupMma` in shared memory: slabs of `lines` lines of `width` neighbors, line
    after line. Neighbors follow the depth, or, if `transposed`, the rows (columns of the right factor). `width` is 8 or
    in `SWIZZLED`, where the 16-byte pieces of a line are swizzled.
    """

    lines: int
    width: int
    transposed: bool

    def offset(self, row: Number, depth: Number) -> Number:
        """The distance of an element from the first, in elements."""
        line, neighbor = (depth, row) if self.transposed else (row, depth)
        # PTX ISA, swizzling modes: within 1024, 512 or 256 bytes, the number of a piece in its line is xored with that
        # of the line's 128 bytes. So eight threads that access eight neighboring pieces, or a piece in each of eight
        # lines, have no bank conflict.
        piece, pieces = neighbor // CORE % (self.width // CORE), self.width // CORE
        pattern = line // (SWIZZLED[-1] // self.width) % pieces
        slab = neighbor // self.width * (self.lines * self.width)
        return slab + line * self.width + (piece ^ pattern) * CORE + neighbor % CORE


@dataclass(frozen=True, slots=True)
class GroupShape:
    """The size of a warpgroup's product: `rows` times 64 rows, `columns` times 8 columns, `steps` times a depth of 16.
    A lane holds `rows` × `columns` × 4 sums: of each instruction's 64 rows, warp n of the group has 16 from row 16 n
    on, as fragments of `Mma` side by side.
    """

    rows: int
    columns: int
    steps: int

    @property
    def sums(self) -> int:
        return self.rows * self.columns * SUM_ELEMENTS


@dataclass(frozen=True, slots=True)
class WarpgroupMma(Multiplication):
    """Start to add to the sums of the four warps the product of two factors in shared memory; their first elements are
    the same for all threads. Until a `WarpgroupWait` the sums must not be accessed, nor the factors written.
    """

    shape: GroupShape
    left_layout: GroupLayout
    right_layout: GroupLayout

    def __str__(self) -> str:
        sums, left, right = self.operand_texts()
        left_text, right_text = (
            f"{'transposed ' if layout.transposed else ''}{layout.lines} x {layout.width}"
            for layout in (self.left_layout, self.right_layout)
        )
        count = f"{self.shape.rows} x {self.shape.steps} times m64n{self.shape.columns * COLUMNS}k16.{self.kind}"
        return f"group {sums} += {left} ({left_text}) * {right} ({right_text}) by {count}"


@dataclass(frozen=True, slots=True)
class WarpgroupWait(TensorStmt):
    """The warpgroup goes on when at most `pending` of its `WarpgroupMma`, the youngest, are under way. The factors of
    finished multiplications may be written; the sums, `count` from `at` on, may be accessed when all are done.
    """

    pending: int
    sums: Buffer
    at: Exprs
    count: int

    def exprs(self) -> Iterator[Expr]:
        yield from self.at

    def map_exprs(self, rule: Callable[[Expr], Expr]) -> Self:
        return replace(self, at=tuple(map(rule, self.at)))

    def __str__(self) -> str:
        return f"group wait for {self.sums} but {self.pending}"


def accesses(stmt: TensorStmt) -> Iterator[tuple[Buffer, Exprs, int, bool]]:
    """Every (buffer, first element, number of neighbors, whether they are written) that a thread names."""
    match stmt:
        case AsyncCopy():
            yield stmt.target, stmt.indices, stmt.count, True
            yield stmt.source, stmt.source_indices, stmt.count, False
        case LoadMatrix():
            yield stmt.target, stmt.indices, stmt.count * stmt.lane_elements, True
            yield stmt.source, stmt.source_indices, stmt.row_elements, False
        case Mma():
            yield stmt.left, stmt.left_at, stmt.instruction.left_elements, False
            yield stmt.right, stmt.right_at, stmt.instruction.right_elements, False
            yield stmt.sums, stmt.at, SUM_ELEMENTS, True
        case TransposeQuad():
            yield stmt.target, stmt.indices, QUAD * PAIR, True
            yield stmt.source, stmt.source_indices, QUAD * PAIR, False
        case WarpgroupMma():
            yield stmt.left, stmt.left_at, CORE, False
            yield stmt.right, stmt.right_at, CORE, False
            yield stmt.sums, stmt.at, stmt.shape.sums, True
        case WarpgroupWait():
            yield stmt.sums, stmt.at, stmt.count, True
