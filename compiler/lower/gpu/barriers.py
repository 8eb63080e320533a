"""Insert barriers into the body of a kernel: a data-flow analysis of the accesses of shared memory.

Between a write and any other access of a shared buffer, of which at least one may be by another thread, there is a
barrier, also from one iteration of a loop to the next. A barrier is only where all threads of a block come by. There is
none between accesses of which every thread makes its own, or which cannot meet, nor in a block of one thread.

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
from retune.compiler.ir.rewrite import accesses_of, has_stmt
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
    block,
    inner_stmts,
)
from retune.compiler.ir.tensor_core import TENSOR_STMTS
from retune.compiler.ir.visit import has, substitute, uses

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
    match stmt:
        case If(condition, body) if _differs(condition, threads):
            if has_stmt(Shuffle, body):
                raise LoweringError(
                    f"{kernel.name}: threads hand each other values where {condition}, where not all of them come "
                    "by; choose lengths that divide, or bind the loops to as many threads everywhere"
                )
            return
        case Let(var, value) if _differs(value, threads):
            threads |= {var}
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
            # All threads enter or none does, so barriers inside are legal.
            case If() if not _differs(stmt.condition, threads):
                body, after = self.visit(stmt.body, before, threads)
                return replace(stmt, body=body), before | after
        return self.together(stmt, before, threads)

    def loop(self, stmt: For, before: _Accesses, threads: frozenset[Var]) -> tuple[Stmt, _Accesses]:
        """A loop that all threads go through together: an iteration comes after what is before the loop, and after
        another iteration.
        """
        carried: _Accesses = frozenset()
        always = True
        # Fixed point of the data flow around the loop: accesses only grow and are finite, so it ends.
        while True:  # a barrier that other iterations need may replace one after which there were fewer accesses
            # `_ANY` comes out again exactly if there is a way through the body without a barrier.
            alone, after_iterations = self.visit(stmt.body, carried | {_ANY}, threads)
            always = always and _ANY not in after_iterations
            after_iterations -= {_ANY}
            # Where every iteration has a barrier others meet the iteration before alone.
            renamed = _of_the_iteration_before if always else _forgotten
            more = renamed(after_iterations, stmt.var)
            if more <= carried:
                break
            carried = carried | more if always else _forgotten(carried | more, stmt.var)
        if always:
            slotted = {one.buffer for one in self.accesses(stmt.body) if one.indices and _is_remainder(one.indices[0])}
            before = _in_the_first_iteration(before, stmt.var, slotted)
        body, after = self.visit(stmt.body, carried | before, threads)
        if body != alone:  # what is before the loop needs more than the iterations need of each other
            return block(Barrier(), replace(stmt, body=alone)), _forgotten(after_iterations, stmt.var)
        return replace(stmt, body=body), _forgotten(after, stmt.var)

    def together(self, stmt: Stmt, before: _Accesses, threads: frozenset[Var]) -> tuple[Stmt, _Accesses]:
        """A statement in which no thread can wait for another: some may leave it out, or there is no need."""
        found = self.accesses(stmt)
        if any(one.writer for one in found):
            self.check_alone(stmt, threads)
        if self.conflict(before, found):
            # After a barrier only what follows it can conflict with later accesses.
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
        match stmt:
            case If(condition, body):
                below, where = self.below | _guards(condition), f"where {condition}"
            case For(var, body=body):
                below, where = self.below, f"in the vector loop {var}"
            case _:
                return
        around, self.below = self.below, below
        inner, _ = self.visit(body, frozenset(), threads)
        self.below = around
        if has_stmt(Barrier, inner):
            raise LoweringError(
                f"{self.kernel.name}: threads must wait for each other {where}, where not all of them come by; "
                "choose lengths that divide, or bind the loops to as many threads everywhere"
            )

    def conflict(self, before: _Accesses, after: _Accesses) -> bool:
        """Whether some thread may touch what another has touched, and one of them writes."""
        return any(
            one.buffer == other.buffer
            and one.writer != other.writer  # a statement writes an element once, or reads what it has written too
            # Both by the first thread alone: it needs no barrier with itself.
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
            # Inside a quotient or remainder the enumeration below does not see the index: threads may meet.
            if any(atom != index and uses(atom, index) for atom in form.terms):
                return False
            along = np.arange(self.kernel.block[dim]) * form.terms.get(index, 0)
            places = places + along.reshape([-1 if other == dim else 1 for other in range(3)])
        # Injectivity over all threads of a block, at most 1,024, is tested by enumeration: exact where affine reasoning
        # gives up.
        return np.unique(places).size == places.size


def _differs(expr: Expr, threads: frozenset[Var]) -> bool:
    """Whether threads of a block may have different values; of what was read nothing is known."""
    return has(Load, expr) or uses(expr, *threads)


def _in_other_slots(one: Expr, other: Expr) -> bool:
    """Whether two indices, each a remainder of the same number, differ by no multiple of that whatever the loops."""
    match one, other:
        case Binary(BinaryOp.FLOORMOD, lhs, Const(by)), Binary(BinaryOp.FLOORMOD, rhs, Const(value)) if by == value:
            # Multi-buffering numbers tiles by `k % depth`: a constant difference that is no multiple means another
            # tile.
            apart = affine(lhs).plus(affine(rhs), -1)
            return not apart.terms and apart.const % by != 0
    return False


def _is_remainder(index: Expr) -> bool:
    match index:
        case Binary(BinaryOp.FLOORMOD):
            return True
    return False


def _forgotten(accesses: _Accesses, var: Var) -> _Accesses:
    """The accesses after `var` has taken another value."""

    def forgotten(index: Expr) -> Expr:
        return _SOMEWHERE if uses(index, var) else index

    return frozenset(replace(one, indices=tuple(map(forgotten, one.indices))) for one in accesses)


def _of_the_iteration_before(accesses: _Accesses, var: Var) -> _Accesses:
    """The accesses of an iteration of the loop over `var`, as the next one names them."""
    before: dict[Expr, Expr] = {var: var - 1}
    return frozenset(
        replace(one, indices=tuple(substitute(index, before) for index in one.indices)) for one in accesses
    )


def _in_the_first_iteration(accesses: _Accesses, var: Var, slotted: Collection[Buffer]) -> _Accesses:
    """The accesses before the loop over `var`; of the buffers `slotted`, whose tiles the loop numbers by remainders, a
    literal number is written as the remainder that it is in the first iteration.
    """

    def named(access: _Access) -> _Access:
        match access.indices:
            case (Const() as slot, *rest) if access.buffer in slotted:
                return replace(access, indices=((slot + var) % access.buffer.shape[0], *rest))
        return access

    return frozenset(map(named, accesses))


def _accesses(stmt: Stmt, below: _Guards) -> Iterator[_Access]:
    """The accesses of shared buffers in a statement that the threads `below` do."""
    for buffer, indices, written in accesses_of(stmt):
        if buffer.scope == "shared":
            # Of the neighbors that a copy or a load of matrices accesses the first alone is named.
            known = indices[:-1] if type(stmt) in TENSOR_STMTS else indices
            place = (*known, *[_SOMEWHERE] * (len(indices) - len(known)))
            yield _Access(buffer, id(stmt) if written else 0, place, below)
    match stmt:
        case If(condition, body):
            yield from _accesses(body, below | _guards(condition))
        case For(var, body=body) | Let(var, body=body):
            yield from _forgotten(frozenset(_accesses(body, below)), var)
        case _:
            yield from (access for inner in inner_stmts(stmt) for access in _accesses(inner, below))


def _guards(condition: Expr) -> _Guards:
    """How many of the first threads a condition lets through, if it says just that."""
    match condition:
        case Binary(BinaryOp.LT, index, Const(most)):
            return frozenset((kind, int(most)) for kind in THREAD_KINDS if index == INDICES[kind])
    return frozenset()
