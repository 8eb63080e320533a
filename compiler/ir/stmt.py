"""Statements of the loop IR of one kernel. Immutable; `str()` is deterministic.

Stmt = For(var, extent, kind, body)    var runs over 0 .. extent-1; kind: serial, parallel, vector, unroll, or a GPU's
     | Let(var, value, extent, body)   value is in 0 .. extent-1
     | If(condition, body)
     | Store(buffer, indices, value)
     | Allocate(buffer, body)          the buffer's lifetime is the body
     | Invoke(function, args, written) call a registered function; only outside of all loops
     | Barrier()                       the threads of a GPU block wait for each other
     | Shuffle(buffer, indices, value, distance, width)     threads of a GPU's warp exchange values
     | AsyncCopy … WarpgroupWait           see `retune.compiler.ir.tensor_core`
     | Block(statements)
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from retune.compiler.core.errors import LoweringError
from retune.compiler.core.packing import Packing
from retune.compiler.ir.dims import Dim
from retune.compiler.ir.expr import Buffer, Const, Expr, Var
from retune.compiler.ir.interval import Ranges
from retune.compiler.ir.tensor_core import TensorStmt
from retune.compiler.ir.tensor_core import Together as Together


class LoopKind(StrEnum):
    """How a loop runs. `STEPS`, over the steps of a scan, is outermost; statements directly inside may be parallel."""

    SERIAL = "for"
    PARALLEL = "parallel"
    STEPS = "steps"
    VECTOR = "vector"
    UNROLL = "unroll"
    VTHREAD = "vthread"
    BLOCK_X = "blockIdx.x"
    BLOCK_Y = "blockIdx.y"
    BLOCK_Z = "blockIdx.z"
    THREAD_X = "threadIdx.x"
    THREAD_Y = "threadIdx.y"
    THREAD_Z = "threadIdx.z"


BLOCK_KINDS = (LoopKind.BLOCK_X, LoopKind.BLOCK_Y, LoopKind.BLOCK_Z)
"""Loops whose iterations run in the blocks of a GPU kernel."""
THREAD_KINDS = (LoopKind.THREAD_X, LoopKind.THREAD_Y, LoopKind.THREAD_Z)
"""Loops whose iterations run in the threads of a block."""


MOST_ITERATIONS = 1 << 31
"""No symbolic extent is larger."""
_FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class For:
    """`body` for every value of `var` in 0 .. extent-1; a symbolic extent may be 0."""

    var: Var
    extent: int
    kind: LoopKind
    body: "Stmt"


@dataclass(frozen=True, slots=True)
class Let:
    """`body` with `var` standing for `value`, which lies in 0 .. extent-1."""

    var: Var
    value: Expr
    extent: int
    body: "Stmt"


@dataclass(frozen=True, slots=True)
class If:
    """`body` where `condition` holds."""

    condition: Expr
    body: "Stmt"


@dataclass(frozen=True, slots=True)
class Store:
    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Allocate:
    """`body` with its own buffer."""

    buffer: Buffer
    body: "Stmt"


@dataclass(frozen=True, slots=True)
class Block:
    """Statements one after another."""

    statements: tuple["Stmt", ...]


@dataclass(frozen=True, slots=True)
class Invoke:
    """Call the function registered under a name with whole buffers, numbers and strings; it writes `written`."""

    function: str
    args: tuple[Buffer | int | float | str | bool, ...]
    written: frozenset[Buffer]


@dataclass(frozen=True, slots=True)
class Barrier(Together):
    """A thread goes on only after all threads of the block have come here, and then sees all that they wrote before."""


@dataclass(frozen=True, slots=True)
class Shuffle(Together):
    """Every thread of a warp writes its own element of `buffer`: the `value` of the thread `distance` further on.

    Threads exchange values within groups of `width`, a power of two. A thread whose source is outside its group keeps
    its own value; a source that the block lacks gives an undefined value. With a `distance` of None all get the value
    of the first thread of the group. All threads of a warp come here together.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    distance: int | None
    width: int


Stmt = For | Let | If | Store | Allocate | Block | Invoke | Barrier | Shuffle | TensorStmt
LEAVES = (Store, Invoke, Together)
"""Statements without statements inside."""


@dataclass(frozen=True, slots=True)
class LoopFunction:
    """A kernel."""

    name: str
    params: tuple[Buffer, ...]
    """The inputs, then the outputs."""
    workspace: tuple[Buffer, ...]
    """Buffers for intermediate results."""
    body: Stmt
    outputs: int
    """How many of `params` are outputs."""
    layout_free: frozenset[str] = frozenset()
    """Names of the inputs whose layout the compiler chooses."""
    unroll_limits: tuple[tuple[str, int], ...] = ()
    """The unroll limit of each stage, by the name of its buffer."""
    packings: tuple[tuple[str, Packing], ...] = ()
    """How inputs are packed, by name."""
    pipelines: tuple[tuple[str, int], ...] = ()
    """Iterations of a loop whose copies into shared memory are in flight at once, by the name of its variable."""
    symbols: tuple[str, ...] = ()
    """The variables of symbolic extents, whose values callers pass."""
    limits: tuple[tuple[int, int], ...] = ()
    """Extents, and their largest values: the kernel fails for larger values."""

    def __str__(self) -> str:
        params = ", ".join(f"{b.name}: {b.dtype}{list(b.shape)}" for b in self.params)
        sizes = "".join(f", {name}: int64" for name in self.symbols)
        lines = [f"def {self.name}({params}{sizes}):"]
        lines.extend(f"  workspace {b.name}: {b.dtype}{list(b.shape)}" for b in self.workspace)
        lines.extend(f"  packed {name}: {packing}" for name, packing in self.packings)
        return "\n".join([*lines, *lines_of(self.body, 1)])


def lines_of(stmt: Stmt, depth: int) -> Iterator[str]:
    """A statement as text, line by line, indented by two blanks a level."""
    pad = "  " * depth
    match stmt:
        case For():
            yield f"{pad}{stmt.kind} {stmt.var} in {stmt.extent}:"
            yield from lines_of(stmt.body, depth + 1)
        case Let():
            yield f"{pad}let {stmt.var} = {stmt.value}"
            yield from lines_of(stmt.body, depth)
        case If():
            yield f"{pad}if {stmt.condition}:"
            yield from lines_of(stmt.body, depth + 1)
        case Store():
            yield f"{pad}{stmt.buffer}[{', '.join(map(str, stmt.indices))}] = {stmt.value}"
        case Allocate():
            yield f"{pad}{stmt.buffer.scope} {stmt.buffer}: {stmt.buffer.dtype}{list(stmt.buffer.shape)}"
            yield from lines_of(stmt.body, depth)
        case Invoke():
            args = ", ".join(str(arg) if isinstance(arg, Buffer) else repr(arg) for arg in stmt.args)
            yield f"{pad}{stmt.function}({args})"
        case Barrier():
            yield f"{pad}barrier"
        case Shuffle():
            target = f"{stmt.buffer}[{', '.join(map(str, stmt.indices))}]"
            source = "the first" if stmt.distance is None else f"{stmt.distance} further"
            yield f"{pad}{target} = shuffle {stmt.value} of {source} in {stmt.width}"
        case TensorStmt():
            yield f"{pad}{stmt}"
        case Block():
            for inner in stmt.statements:
                yield from lines_of(inner, depth)


def block(*statements: Stmt) -> Stmt:
    """The statements in order; nested blocks are flattened, one statement stands for itself."""
    flat: list[Stmt] = []
    for statement in statements:
        flat.extend(statement.statements if isinstance(statement, Block) else (statement,))
    return flat[0] if len(flat) == 1 else Block(tuple(flat))


def map_outermost(body: Stmt, rule: Callable[[Stmt], Stmt]) -> Stmt:
    """The body of a kernel with `rule` applied to every statement outside of all loops, and to those of the steps of a
    scan.
    """
    match body:
        case Block(statements):
            return block(*(map_outermost(statement, rule) for statement in statements))
        case For(kind=LoopKind.STEPS):
            return replace(body, body=map_outermost(body.body, rule))
    return rule(body)


def is_temporary(buffer: Buffer) -> bool:
    """Whether the buffer is a scalar in a register, of which every lane of a vector loop has its own."""
    return buffer.scope == "register" and not buffer.shape


def inner_stmts(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside of `stmt`."""
    if isinstance(stmt, Block):
        return stmt.statements
    return () if isinstance(stmt, LEAVES) else (stmt.body,)


def range_of(stmt: For | Let) -> tuple[int, int]:
    """The smallest and the largest value of the variable that a loop or let binds."""
    # A literal has one value, whatever extent the `let` names.
    if isinstance(stmt, Let) and isinstance(stmt.value, Const):
        return int(stmt.value.value), int(stmt.value.value)
    return 0, MOST_ITERATIONS - 1 if isinstance(stmt.extent, Dim) else stmt.extent - 1


def ranges_inside(stmt: Stmt, ranges: Ranges) -> Ranges:
    """The ranges of the variables inside of a statement, from those around it."""
    return {**ranges, stmt.var: range_of(stmt)} if isinstance(stmt, (For, Let)) else ranges


def map_inner(stmt: Stmt, rule: Callable[[Stmt], Stmt]) -> Stmt:
    """`stmt` with `rule` applied to the statements directly inside; `stmt` itself when none changes."""
    if isinstance(stmt, LEAVES):
        return stmt
    if isinstance(stmt, Block):
        new = tuple(map(rule, stmt.statements))
        # By identity: comparing whole trees at every level would take quadratic time.
        same = all(new_stmt is old_stmt for new_stmt, old_stmt in zip(new, stmt.statements, strict=True))
        return stmt if same else block(*new)
    body = rule(stmt.body)
    return stmt if body is stmt.body else replace(stmt, body=body)


def walk_stmt(stmt: Stmt) -> Iterator[Stmt]:
    """`stmt` and every statement below it, parents first."""
    yield stmt
    for inner in inner_stmts(stmt):
        yield from walk_stmt(inner)


def map_stmt(stmt: Stmt, rule: Callable[[Stmt], Stmt | None]) -> Stmt:
    """Rebuild from the leaves: inner statements first, then `rule` on the rebuilt statement (None keeps it)."""
    stmt = map_inner(stmt, lambda inner: map_stmt(inner, rule))
    result = rule(stmt)
    return stmt if result is None else result


def map_own(stmt: Stmt, rule: Callable[[Expr], Expr]) -> Stmt:
    """`stmt` with `rule` applied to its own whole expressions, not those inside; `stmt` itself when none changes."""
    match stmt:
        case Let():
            value = rule(stmt.value)
            return stmt if value is stmt.value else replace(stmt, value=value)
        case If():
            condition = rule(stmt.condition)
            return stmt if condition is stmt.condition else replace(stmt, condition=condition)
        case Store() | Shuffle():
            value, indices = rule(stmt.value), tuple(map(rule, stmt.indices))
            same = value is stmt.value and all(new is old for new, old in zip(indices, stmt.indices, strict=True))
            return stmt if same else replace(stmt, indices=indices, value=value)
        case TensorStmt():
            return stmt.map_exprs(rule)
    return stmt


def map_exprs(stmt: Stmt, rule: Callable[[Expr], Expr]) -> Stmt:
    """Apply `rule` to every whole expression of the statement tree."""
    return map_stmt(stmt, lambda node: map_own(node, rule))


def exprs_of(stmt: Stmt) -> Iterator[Expr]:
    """Every whole expression of `stmt`, not of the statements inside."""
    match stmt:
        case Let():
            yield stmt.value
        case If():
            yield stmt.condition
        case Store() | Shuffle():
            yield from stmt.indices
            yield stmt.value
        case TensorStmt():
            yield from stmt.exprs()


def is_function_name(name: str) -> bool:
    """Whether code can be generated for a kernel of this name."""
    return _FUNCTION_NAME.fullmatch(name) is not None


def check_function_name(name: str) -> None:
    """Check that code can be generated for a kernel of this name. Raises: LoweringError."""
    if not is_function_name(name):
        raise LoweringError(f"a kernel cannot be called {name!r}: letters, digits and _ make the name of a function")
