"""Loop nests of one stage: statements from loops and expressions.

Loops of one iteration are left out where nothing is bound to them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.expr import Binary, Buffer, Expr, Load, Var, cast
from retune.compiler.ir.stmt import BLOCK_KINDS, THREAD_KINDS, Allocate, For, If, Let, LoopKind, Stmt, Store, block
from retune.compiler.schedule.linear import LoopKey
from retune.compiler.schedule.state import Number
from retune.compiler.te.reduction import Reduce, values_of


@dataclass(frozen=True, slots=True)
class NestLoop:
    """A loop to emit: the iterator's variable, and the loops it was fused from, with their values."""

    var: Var
    extent: int
    kind: LoopKind
    reduces: bool
    parts: tuple[tuple[Var, Expr, int], ...]


def first_reduction(loops: Sequence[NestLoop]) -> int:
    """The number of the outermost loop that reduces and has more than one iteration."""
    return next(number for number, loop in enumerate(loops) if loop.reduces and loop.extent > 1)


def points_of(loops: Sequence[NestLoop]) -> list[NestLoop]:
    """The loops over results inside the outermost reduction loop; a thread has a partial result for each point."""
    inner = loops[first_reduction(loops) :]
    return [loop for loop in inner if not loop.reduces and loop.extent > 1 and loop.kind not in THREAD_KINDS]


def stores(buffers: Sequence[Buffer], target: tuple[Expr, ...], values: Sequence[Expr]) -> Stmt:
    """Write one element of every buffer, in its type; no value reads any of the buffers."""
    pairs = zip(buffers, values, strict=True)
    return block(*(Store(buffer, target, cast(buffer.dtype, value)) for buffer, value in pairs))


def join_into(body: Reduce, buffers: Sequence[Buffer], target: tuple[Expr, ...]) -> Stmt:
    """Join the source of `body`, in the types of the buffers, to element `target` of the buffers. Several results need
    each other's old values, and a join may need its operands more than once, so operands are read first, except in a
    plain `old op new`.
    """
    old = Load(buffers[0], target)
    new = [cast(buffer.dtype, value) for buffer, value in zip(buffers, values_of(body.source), strict=True)]
    (result, *more) = body.join([Load(buffer, target) for buffer in buffers], new)
    plain = isinstance(result, Binary) and result.lhs == old and result.rhs == new[0]
    if plain and not more:
        return Store(buffers[0], target, result)
    temporaries: list[tuple[Buffer, Expr]] = []
    for side, values in (("new", new), ("old", [Load(buffer, target) for buffer in buffers])):
        for buffer, value in zip(buffers, values, strict=True):
            temporaries.append((Buffer(f"{buffer.name}.{side}", (), value.dtype, "register"), value))
    loads = [Load(buffer, ()) for buffer, _ in temporaries]
    count = len(buffers)
    reads = [Store(buffer, (), value) for buffer, value in temporaries]
    leaf = block(*reads, stores(buffers, target, body.join(loads[count:], loads[:count])))
    for buffer, _ in reversed(temporaries):
        leaf = Allocate(buffer, leaf)
    return leaf


def loop_var(key: LoopKey) -> Var:
    # With the stage's number, since loops of several stages may have the same name.
    return Var(f"{key[1]}.s{key[0]}")


def loop_vars(loop: NestLoop) -> set[Var]:
    return {loop.var, *(var for var, _, _ in loop.parts)}


def known_extent(value: Number) -> int:
    """The number of the single program that is lowered. Raises: LoweringError when there are several."""
    if isinstance(value, int):
        return value
    if value.size != 1:
        raise LoweringError("one program is lowered at a time; pick its tile sizes first")
    return int(value.reshape(()))


def known_extents(sizes: Mapping[str, Number]) -> dict[str, int]:
    """Numbers of the single program that is lowered."""
    return {name: known_extent(size) for name, size in sizes.items()}


def wrap_in_guards(conditions: list[Expr], stmt: Stmt) -> Stmt:
    """The statement where all the conditions hold."""
    for condition in conditions:
        stmt = If(condition, stmt)
    return stmt


def wrap_in_loop(loop: NestLoop, stmt: Stmt) -> Stmt:
    """The statement inside a loop. A loop of a single iteration is left out, but not over blocks or threads, where it
    means that a single block or thread runs the statement.
    """
    for var, value, extent in reversed(loop.parts):
        stmt = stmt if extent == 1 else Let(var, value, extent, stmt)
    left_out = loop.extent == 1 and loop.kind not in (*BLOCK_KINDS, *THREAD_KINDS)
    return stmt if left_out else For(loop.var, loop.extent, loop.kind, stmt)


def wrap_in_loops(loops: list[NestLoop], leaf: Stmt, guards: list[Expr]) -> Stmt:
    """The statement, where `guards` hold, inside the loops, outermost first."""
    stmt = wrap_in_guards(guards, leaf)
    for loop in reversed(loops):
        stmt = wrap_in_loop(loop, stmt)
    return stmt
