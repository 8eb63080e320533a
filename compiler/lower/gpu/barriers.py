"""Insert barriers into the body of a kernel: a data-flow analysis of the accesses of shared memory.

A barrier separates a write from any other access of a shared buffer, if they may be by different threads, also from one
iteration of a loop to the next. A barrier is only where all threads of a block execute it. There is none between
accesses that every thread makes to its own elements, or that cannot meet, nor in a block of one thread.

    before: for k: s[t] = x[k, t]; y[t] = y[t] + s[31 - t]
    after:  for k: barrier; s[t] = x[k, t]; barrier; y[t] = y[t] + s[31 - t]
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from retune.compiler.core.errors import LoweringError
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
from retune.compiler.ir.tensor_core import TensorStmt
from retune.compiler.ir.visit import has, substitute, uses

_Guards = frozenset[tuple[LoopKind, int]]

_SOMEWHERE = Var("?")
"""An unknown index."""


@dataclass(frozen=True, slots=True)
class _Access:
    """A read or a write of a shared buffer; an index is `_SOMEWHERE` once its variables have changed. `writer` is 0 for
    a read, and differs between the statements that write. `below`: the access is only by the first threads along a
    dimension.
    """

    buffer: Buffer
    writer: int
    indices: tuple[Expr, ...]
    below: _Guards


_Accesses = frozenset[_Access]

_ANY = _Access(Buffer("?", (), "bool", "shared"), 0, (), frozenset())
"""Any access before a statement: it disappears where every path has a barrier."""


def insert_barriers(kernel: Kernel) -> Kernel:
    """The kernel with barriers.

    Raises: LoweringError if a barrier or a shuffle would be where not all threads of a block execute it.
    """
    _check_shuffles(kernel, kernel.body.body, frozenset(INDICES[kind] for kind in THREAD_KINDS))
    if kernel.threads == 1:
        return kernel
    body, _ = _Planner(kernel).visit(kernel.body.body, frozenset(), frozenset(INDICES[kind] for kind in THREAD_KINDS))
    return replace(kernel, body=replace(kernel.body, body=body))


def _check_shuffles(kernel: Kernel, stmt: Stmt, threads: frozenset[Var]) -> None:
    """Raises: LoweringError for a shuffle inside a condition that may differ between threads of a block."""
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
        self.access_cache: dict[tuple[int, _Guards], _Accesses] = {}
        self.below: _Guards = frozenset()
        self.reached: dict[_Access, tuple[tuple[float, float], ...]] = {}
        self.first_alone = frozenset((kind, 1) for kind in THREAD_KINDS if kernel.sizes[kind] > 1)

    def visit(self, stmt: Stmt, before: _Accesses, threads: frozenset[Var]) -> tuple[Stmt, _Accesses]:
        """The statement with barriers, and the accesses since the last; `threads` are variables by thread."""
        match stmt:
            case Block():
                statements = []
                for inner in stmt.statements:
                    new_stmt, before = self.visit(inner, before, threads)
                    statements.append(new_stmt)
                return block(*statements), before
            case Barrier():
                return stmt, frozenset()
            case Allocate():
                body, after = self.visit(stmt.body, before, threads)
                return replace(stmt, body=body), after
            case Let():
                inside = threads | {stmt.var} if _differs(stmt.value, threads) else threads
                body, after = self.visit(stmt.body, before, inside)
                return replace(stmt, body=body), _forget(after, stmt.var)
            case For() if stmt.kind is not LoopKind.VECTOR and any(access.writer for access in self.accesses(stmt)):
                return self.loop(stmt, before, threads)
            # All threads enter or none does, so barriers inside are legal.
            case If() if not _differs(stmt.condition, threads):
                body, after = self.visit(stmt.body, before, threads)
                return replace(stmt, body=body), before | after
        return self.together(stmt, before, threads)

    def loop(self, stmt: For, before: _Accesses, threads: frozenset[Var]) -> tuple[Stmt, _Accesses]:
        """A loop that all threads execute together: an iteration follows the code before the loop, or another."""
        carried: _Accesses = frozenset()
        always = True
        # Fixed point of the data flow around the loop: accesses only grow and are finite, so it ends.
        while True:  # a barrier that other iterations need may replace a barrier with fewer accesses after it
            # `_ANY` comes out exactly if there is a path through the body without a barrier.
            iterated, after_iterations = self.visit(stmt.body, carried | {_ANY}, threads)
            always = always and _ANY not in after_iterations
            after_iterations -= {_ANY}
            # Where every iteration has a barrier, an iteration meets only the previous iteration.
            renamed = _of_the_iteration_before if always else _forget
            more = renamed(after_iterations, stmt.var)
            if more <= carried:
                break
            carried = carried | more if always else _forget(carried | more, stmt.var)
        if always:
            slotted = {
                access.buffer
                for access in self.accesses(stmt.body)
                if access.indices and _is_remainder(access.indices[0])
            }
            before = _in_the_first_iteration(before, stmt.var, slotted)
        body, after = self.visit(stmt.body, carried | before, threads)
        if body != iterated:  # code before the loop needs more than the iterations need of each other
            return block(Barrier(), replace(stmt, body=iterated)), _forget(after_iterations, stmt.var)
        return replace(stmt, body=body), _forget(after, stmt.var)

    def together(self, stmt: Stmt, before: _Accesses, threads: frozenset[Var]) -> tuple[Stmt, _Accesses]:
        """A statement in which no thread can wait for another: some may skip it, or there is no need."""
        accesses = self.accesses(stmt)
        if any(access.writer for access in accesses):
            self.check_alone(stmt, threads)
        if self.conflict(before, accesses):
            # After a barrier only what follows it can conflict with later accesses.
            return block(Barrier(), stmt), accesses
        return stmt, before | accesses

    def accesses(self, stmt: Stmt) -> _Accesses:
        """The accesses of shared buffers in the statement."""
        key = id(stmt), self.below
        if key not in self.access_cache:
            self.access_cache[key] = frozenset(_accesses(stmt, self.below))
        return self.access_cache[key]

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
        """Whether a thread may access an element that another thread has accessed, if either writes."""
        return any(
            earlier.buffer == later.buffer
            and earlier.writer != later.writer  # a statement writes an element once, or reads what it has written too
            # The first thread alone needs no barrier with itself.
            and not earlier.below & later.below >= self.first_alone
            and not (earlier.indices == later.indices and self.is_own(earlier.buffer, earlier.indices))
            and not self.are_disjoint(earlier, later)
            for earlier in before
            for later in after
        )

    def are_disjoint(self, left: _Access, right: _Access) -> bool:
        """Whether the accesses are of elements that differ along some dimension, whichever threads make them."""
        if left.indices and right.indices and _are_in_different_slots(left.indices[0], right.indices[0]):
            return True
        pairs = zip(self.reach(left), self.reach(right), strict=True)
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
        """Whether no two threads access the same element with these indices, with all other variables equal."""
        if (buffer, indices) not in self.owned:
            self.owned[buffer, indices] = self._differ(buffer, indices)
        return self.owned[buffer, indices]

    def _differ(self, buffer: Buffer, indices: tuple[Expr, ...]) -> bool:
        form = flat_index(buffer.shape, indices)
        addresses: NDArray[np.int64] = np.zeros(self.kernel.block, np.int64)
        for dim, kind in enumerate(THREAD_KINDS):
            index = INDICES[kind]
            # Inside a quotient or remainder the enumeration below does not see the index: threads may meet.
            if any(atom != index and uses(atom, index) for atom in form.terms):
                return False
            offsets = np.arange(self.kernel.block[dim]) * form.terms.get(index, 0)
            addresses = addresses + offsets.reshape([-1 if axis == dim else 1 for axis in range(3)])
        # Injectivity over all threads of a block, at most 1,024, is tested by enumeration: exact where affine reasoning
        # gives up.
        return np.unique(addresses).size == addresses.size


def _differs(expr: Expr, threads: frozenset[Var]) -> bool:
    """Whether `expr` may differ between threads of a block; loaded values may."""
    return has(Load, expr) or uses(expr, *threads)


def _are_in_different_slots(left: Expr, right: Expr) -> bool:
    """Whether two indices, remainders by the same number, differ by no multiple of it whatever the loops."""
    match left, right:
        case Binary(BinaryOp.FLOORMOD, lhs, Const(by)), Binary(BinaryOp.FLOORMOD, rhs, Const(value)) if by == value:
            # Multi-buffering numbers tiles by `k % depth`: a constant difference that is no multiple means different
            # tiles.
            difference = affine(lhs).plus(affine(rhs), -1)
            return not difference.terms and difference.const % by != 0
    return False


def _is_remainder(index: Expr) -> bool:
    match index:
        case Binary(BinaryOp.FLOORMOD):
            return True
    return False


def _forget(accesses: _Accesses, var: Var) -> _Accesses:
    """The accesses after `var` has changed."""

    def forget_index(index: Expr) -> Expr:
        return _SOMEWHERE if uses(index, var) else index

    return frozenset(replace(access, indices=tuple(map(forget_index, access.indices))) for access in accesses)


def _of_the_iteration_before(accesses: _Accesses, var: Var) -> _Accesses:
    """The accesses of an iteration of the loop over `var`, in terms of the next iteration."""
    previous: dict[Expr, Expr] = {var: var - 1}
    return frozenset(
        replace(access, indices=tuple(substitute(index, previous) for index in access.indices)) for access in accesses
    )


def _in_the_first_iteration(accesses: _Accesses, var: Var, slotted: Collection[Buffer]) -> _Accesses:
    """The accesses before the loop over `var`. In the buffers `slotted`, whose tiles the loop numbers by remainders, a
    literal number is written as the remainder that it is in the first iteration.
    """

    def name_slot(access: _Access) -> _Access:
        match access.indices:
            case (Const() as slot, *rest) if access.buffer in slotted:
                return replace(access, indices=((slot + var) % access.buffer.shape[0], *rest))
        return access

    return frozenset(map(name_slot, accesses))


def _accesses(stmt: Stmt, below: _Guards) -> Iterator[_Access]:
    """The accesses of shared buffers in a statement that only the threads `below` execute."""
    for buffer, indices, written in accesses_of(stmt):
        if buffer.scope == "shared":
            # A copy or a load of matrices names only the first of the neighbors that it accesses.
            exact = indices[:-1] if isinstance(stmt, TensorStmt) else indices
            padded = (*exact, *[_SOMEWHERE] * (len(indices) - len(exact)))
            yield _Access(buffer, id(stmt) if written else 0, padded, below)
    match stmt:
        case If(condition, body):
            yield from _accesses(body, below | _guards(condition))
        case For(var, body=body) | Let(var, body=body):
            yield from _forget(frozenset(_accesses(body, below)), var)
        case _:
            yield from (access for inner in inner_stmts(stmt) for access in _accesses(inner, below))


def _guards(condition: Expr) -> _Guards:
    """The numbers of first threads that a condition lets through, if it tests nothing else."""
    match condition:
        case Binary(BinaryOp.LT, index, Const(most)):
            return frozenset((kind, int(most)) for kind in THREAD_KINDS if index == INDICES[kind])
    return frozenset()
