"""In: the body of a kernel as one thread runs it. Out: the same with barriers.

Always: between a write and any other access of a shared buffer, of which at least one may be by another thread, all
threads meet, also from one turn of a loop to the next. A barrier stands where all threads of a block come by. None
stands between accesses of which every thread makes its own, or which cannot meet, nor in a block of one thread.

    before: for k: s[t] = x[k, t]; y[t] = y[t] + s[31 - t]
    after:  for k: barrier; s[t] = x[k, t]; barrier; y[t] = y[t] + s[31 - t]
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retune.compiler.errors import LoweringError
from retune.compiler.ir.affine import affine, flat_index
from retune.compiler.ir.expr import Binary, BinaryOp, Buffer, Const, Expr, Load, Var
from retune.compiler.ir.interval import limits
from retune.compiler.ir.kernel import INDICES, Kernel
from retune.compiler.ir.stmt import (
    THREAD_KINDS,
    Allocate,
    Barrier,
    Block,
    For,
    If,
    Let,
    LoopKind,
    Shuffle,
    Stmt,
    Store,
    block,
    exprs_of,
    inner_stmts,
    walk_stmt,
)
from retune.compiler.ir.tensor_core import AsyncCopy, LoadMatrix
from retune.compiler.ir.tensor_core import accesses as named_accesses
from retune.compiler.ir.visit import substitute, walk

_Guards = frozenset[tuple[LoopKind, int]]

_SOMEWHERE = Var("?")
"""An index of which nothing is known."""


@dataclass(frozen=True, slots=True)
class _Access:
    """A read or a write of a shared buffer; an index is `_SOMEWHERE` once it means another one than it did. `writer` is
    0 for a read, another number for each statement that writes. `below` says how many of the first threads along a
    dimension do it, where not all of them do.
    """

    buffer: Buffer
    writer: int
    indices: tuple[Expr, ...]
    below: _Guards


_Accesses = frozenset[_Access]

_ANY = _Access(Buffer("?", (), "bool", "shared"), 0, (), frozenset())
"""Stands for whatever was accessed before a statement: it is gone where there is a barrier in any case."""


def insert_barriers(kernel: Kernel) -> Kernel:
    """The kernel with barriers.

    Raises: LoweringError when one would stand where not all threads of a block come by, or a shuffle does.
    """
    _check_shuffles(kernel, kernel.body.body, frozenset(INDICES[kind] for kind in THREAD_KINDS))
    if kernel.threads == 1:
        return kernel
    body, _ = _Planner(kernel).visit(kernel.body.body, frozenset(), frozenset(INDICES[kind] for kind in THREAD_KINDS))
    return replace(kernel, body=replace(kernel.body, body=body))


def _check_shuffles(kernel: Kernel, stmt: Stmt, threads: frozenset[Var]) -> None:
    """Raises: LoweringError for a shuffle inside a condition that threads of a block may answer differently."""
    if isinstance(stmt, If) and _differs(stmt.condition, threads):
        if any(isinstance(inner, Shuffle) for inner in walk_stmt(stmt.body)):
            raise LoweringError(
                f"{kernel.name}: threads hand each other values where {stmt.condition}, where not all of them come "
                "by; choose lengths that divide, or bind the loops to as many threads everywhere"
            )
        return
    if isinstance(stmt, Let) and _differs(stmt.value, threads):
        threads |= {stmt.var}
    for inner in inner_stmts(stmt):
        _check_shuffles(kernel, inner, threads)


class _Planner:
    """Walks a kernel with the accesses since the last barrier."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.owned: dict[tuple[Buffer, tuple[Expr, ...]], bool] = {}
        self.found: dict[tuple[int, _Guards], _Accesses] = {}
        self.below: _Guards = frozenset()
        self.reached: dict[_Access, tuple[tuple[float, float], ...]] = {}
        self.first_alone = frozenset((kind, 1) for kind in THREAD_KINDS if kernel.sizes[kind] > 1)

    def visit(self, stmt: Stmt, before: _Accesses, threads: frozenset[Var]) -> tuple[Stmt, _Accesses]:
        """The statement with barriers, and the accesses since the last one; `threads` are the variables that differ
        from thread to thread.
        """
        match stmt:
            case Block():
                statements = []
                for inner in stmt.statements:
                    made, before = self.visit(inner, before, threads)
                    statements.append(made)
                return block(*statements), before
            case Barrier():
                return stmt, frozenset()
            case Allocate():
                body, after = self.visit(stmt.body, before, threads)
                return replace(stmt, body=body), after
            case Let():
                inside = threads | {stmt.var} if _differs(stmt.value, threads) else threads
                body, after = self.visit(stmt.body, before, inside)
                return replace(stmt, body=body), _forgotten(after, stmt.var)
            case For() if stmt.kind is not LoopKind.VECTOR and any(one.writer for one in self.accesses(stmt)):
                return self.loop(stmt, before, threads)
            case If() if not _differs(stmt.condition, threads):
                body, after = self.visit(stmt.body, before, threads)
                return replace(stmt, body=body), before | after
        return self.together(stmt, before, threads)

    def loop(self, stmt: For, before: _Accesses, threads: frozenset[Var]) -> tuple[Stmt, _Accesses]:
        """A loop that all threads go through together: a turn comes after what stands before the loop, and after
        another turn.
        """
        carried: _Accesses = frozenset()
        always = True
        while True:  # a barrier that accesses of other turns ask for may stand in for one behind which there were fewer
            alone, after_turns = self.visit(stmt.body, carried | {_ANY}, threads)
            always = always and _ANY not in after_turns
            after_turns -= {_ANY}
            # Where every turn has a barrier others meet the turn before alone.
            more = _of_the_turn_before(after_turns, stmt.var) if always else _forgotten(after_turns, stmt.var)
            if more <= carried:
                break
            carried = carried | more if always else _forgotten(carried | more, stmt.var)
        if always:
            slotted = {one.buffer for one in self.accesses(stmt.body) if one.indices and _is_remainder(one.indices[0])}
            before = _in_the_first_turn(before, stmt.var, slotted)
        body, after = self.visit(stmt.body, carried | before, threads)
        if body != alone:  # what stands before the loop asks for more than its turns ask of each other
            return block(Barrier(), replace(stmt, body=alone)), _forgotten(after_turns, stmt.var)
        return replace(stmt, body=body), _forgotten(after, stmt.var)

    def together(self, stmt: Stmt, before: _Accesses, threads: frozenset[Var]) -> tuple[Stmt, _Accesses]:
        """A statement in which no thread can wait for another: some may leave it out, or there is no need."""
        found = self.accesses(stmt)
        if not isinstance(stmt, Store) and any(one.writer for one in found):
            self.check_alone(stmt, threads)
        if self.conflict(before, found):
            return block(Barrier(), stmt), found
        return stmt, before | found

    def accesses(self, stmt: Stmt) -> _Accesses:
        """The accesses of shared buffers in the statement."""
        key = id(stmt), self.below
        if key not in self.found:
            self.found[key] = frozenset(_accesses(stmt, self.below))
        return self.found[key]

    def check_alone(self, stmt: Stmt, threads: frozenset[Var]) -> None:
        """Raises: LoweringError when threads need each other's results inside the statement."""
        if isinstance(stmt, (If, For)):
            around = self.below
            self.below = around | _guards(stmt.condition) if isinstance(stmt, If) else around
            inner, _ = self.visit(stmt.body, frozenset(), threads)
            self.below = around
            if any(isinstance(one, Barrier) for one in walk_stmt(inner)):
                where = f"where {stmt.condition}" if isinstance(stmt, If) else f"in the vector loop {stmt.var}"
                raise LoweringError(
                    f"{self.kernel.name}: threads must wait for each other {where}, where not all of them come by; "
                    "choose lengths that divide, or bind the loops to as many threads everywhere"
                )

    def conflict(self, before: _Accesses, after: _Accesses) -> bool:
        """Whether some thread may touch what another has touched, and one of them writes."""
        return any(
            one.buffer == other.buffer
            and one.writer != other.writer  # a statement writes an element once, or reads what it has written too
            and not one.below & other.below >= self.first_alone
            and not (one.indices == other.indices and self.is_own(one.buffer, one.indices))
            and not self.apart(one, other)
            for one in before
            for other in after
        )

    def apart(self, one: _Access, other: _Access) -> bool:
        """Whether the two are of elements that differ along some dimension, whichever threads make them."""
        if one.indices and other.indices and _in_other_slots(one.indices[0], other.indices[0]):
            return True
        pairs = zip(self.reach(one), self.reach(other), strict=True)
        return any(high < start or end < low for (low, high), (start, end) in pairs)

    def reach(self, access: _Access) -> tuple[tuple[float, float], ...]:
        """The smallest and the largest index along every dimension."""
        if access not in self.reached:
            ranges = dict(self.kernel.ranges)
            for kind, most in access.below:
                ranges[INDICES[kind]] = (0, min(ranges[INDICES[kind]][1], most - 1))
            self.reached[access] = tuple(limits(affine(index), ranges) for index in access.indices)
        return self.reached[access]

    def is_own(self, buffer: Buffer, indices: tuple[Expr, ...]) -> bool:
        """Whether no two threads touch the same element with these indices, all other variables being the same."""
        if (buffer, indices) not in self.owned:
            self.owned[buffer, indices] = self._differ(buffer, indices)
        return self.owned[buffer, indices]

    def _differ(self, buffer: Buffer, indices: tuple[Expr, ...]) -> bool:
        form = flat_index(buffer.shape, indices)
        places: NDArray[Any] = np.zeros(self.kernel.block, np.int64)
        for dim, kind in enumerate(THREAD_KINDS):
            index = INDICES[kind]
            if any(atom != index and index in walk(atom) for atom in form.terms):
                return False
            along = np.arange(self.kernel.block[dim]) * form.terms.get(index, 0)
            places = places + along.reshape([-1 if other == dim else 1 for other in range(3)])
        return np.unique(places).size == places.size


def _differs(expr: Expr, threads: frozenset[Var]) -> bool:
    """Whether threads of a block may have different values; of what was read nothing is known."""
    return any(isinstance(node, Load) or node in threads for node in walk(expr))


def _in_other_slots(one: Expr, other: Expr) -> bool:
    """Whether two indices, each a remainder of the same number, differ by no multiple of that whatever the loops."""
    if not isinstance(one, Binary) or not isinstance(other, Binary) or one.rhs != other.rhs:
        return False
    if not _is_remainder(one) or not _is_remainder(other) or not isinstance(one.rhs, Const):
        return False
    apart = affine(one.lhs).plus(affine(other.lhs), -1)
    return not apart.terms and apart.const % one.rhs.value != 0


def _is_remainder(index: Expr) -> bool:
    return isinstance(index, Binary) and index.op is BinaryOp.FLOORMOD


def _forgotten(accesses: _Accesses, var: Var) -> _Accesses:
    """The accesses after `var` has taken another value."""

    def forgotten(index: Expr) -> Expr:
        return _SOMEWHERE if any(node == var for node in walk(index)) else index

    return frozenset(replace(one, indices=tuple(map(forgotten, one.indices))) for one in accesses)


def _of_the_turn_before(accesses: _Accesses, var: Var) -> _Accesses:
    """The accesses of a turn of the loop over `var`, as the next turn names them."""
    before: dict[Expr, Expr] = {var: var - 1}
    return frozenset(
        replace(one, indices=tuple(substitute(index, before) for index in one.indices)) for one in accesses
    )


def _in_the_first_turn(accesses: _Accesses, var: Var, slotted: Collection[Buffer]) -> _Accesses:
    """The accesses before the loop over `var`; of the buffers `slotted`, whose tiles the loop numbers by remainders, a
    literal number is written as the remainder that it is in the first turn.
    """

    def named(access: _Access) -> _Access:
        if access.buffer not in slotted or not isinstance(access.indices[0], Const):
            return access
        return replace(access, indices=((access.indices[0] + var) % access.buffer.shape[0], *access.indices[1:]))

    return frozenset(map(named, accesses))


def _accesses(stmt: Stmt, below: _Guards) -> Iterator[_Access]:
    """The accesses of shared buffers in a statement that the threads `below` do."""
    if isinstance(stmt, Store) and stmt.buffer.scope == "shared":
        yield _Access(stmt.buffer, id(stmt), stmt.indices, below)
    if isinstance(stmt, (AsyncCopy, LoadMatrix)):
        for buffer, indices, _, written in named_accesses(stmt):
            if buffer.scope == "shared":  # neighbours, of which the first alone is named
                place = (*indices[:-1], _SOMEWHERE)
                yield _Access(buffer, id(stmt) if written else 0, place, below)
    for expr in exprs_of(stmt):
        for node in walk(expr):
            if isinstance(node, Load) and node.buffer.scope == "shared":
                yield _Access(node.buffer, 0, node.indices, below)
    inside = below | _guards(stmt.condition) if isinstance(stmt, If) else below
    found = (access for inner in inner_stmts(stmt) for access in _accesses(inner, inside))
    yield from _forgotten(frozenset(found), stmt.var) if isinstance(stmt, (For, Let)) else found


def _guards(condition: Expr) -> _Guards:
    """How many of the first threads a condition lets through, if it says just that."""
    if not isinstance(condition, Binary) or condition.op is not BinaryOp.LT or not isinstance(condition.rhs, Const):
        return frozenset()
    most = int(condition.rhs.value)
    return frozenset((kind, most) for kind in THREAD_KINDS if condition.lhs == INDICES[kind])
