"""Verifies the loop IR of a kernel and names the first rule that it breaks.

An accepted kernel has a meaning, so a faulty pass is named before code is generated.

The rules: a variable is bound once on its path and before it is used; an access has as many indices as its buffer has
dimensions; only outputs, workspace and allocated buffers are written, and an allocated buffer is used only inside its
allocation; extents are positive; conditions are bools; functions are called outside of all loops; only a kernel's body
may be empty; registers are accessed within their buffer whatever the variables; only matrices of halves are transposed.
"""

from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.dims import Dim
from retune.compiler.ir.expr import BOOL, Buffer, Dot, Expr, Load, Var, dim_expr
from retune.compiler.ir.interval import Ranges, limits
from retune.compiler.ir.stmt import (
    LEAVES,
    MOST_ITERATIONS,
    Allocate,
    Block,
    For,
    If,
    Invoke,
    Let,
    LoopFunction,
    Shuffle,
    Stmt,
    Store,
    exprs_of,
)
from retune.compiler.ir.tensor_core import LoadMatrix, TensorStmt, accesses
from retune.compiler.ir.visit import parts

_ALLOCATED = ("local", "register", "shared")


def verify(function: LoopFunction, after: str, outer: Ranges | None = None) -> None:
    """Check a kernel; `after` names the pass that made it, `outer` the ranges of variables bound outside of it.

    Raises: LoweringError naming the pass and the rule.
    """
    inputs = len(function.params) - function.outputs
    names = [buffer.name for buffer in (*function.params, *function.workspace)]
    try:
        for name in names:
            _demand(names.count(name) == 1, f"two buffers are called {name}")
        readable = frozenset((*function.params, *function.workspace))
        bound = {**(outer or {}), **{Var(name): (0, MOST_ITERATIONS - 1) for name in function.symbols}}
        _Checker(frozenset(function.params[:inputs])).statement(function.body, bound, readable)
    except _BrokenRuleError as broken:
        raise LoweringError(f"{function.name}, after {after}: {broken}") from None


class _BrokenRuleError(Exception):
    """A rule that does not hold, in words."""


def _demand(holds: bool, rule: str) -> None:
    if not holds:
        raise _BrokenRuleError(rule)


class _Checker:
    """Walks a kernel with the bound variables and the existing buffers; `constant` are not written."""

    def __init__(self, constant: frozenset[Buffer]) -> None:
        self.constant = constant

    def statement(self, stmt: Stmt, bound: Ranges, buffers: frozenset[Buffer]) -> None:
        for expr in exprs_of(stmt):
            self.expression(expr, bound, buffers)
        if not isinstance(stmt, (Block, *LEAVES)):
            _demand(stmt.body != Block(()), f"a {type(stmt).__name__} has nothing in it")
        match stmt:
            case Block():
                for inner in stmt.statements:
                    self.statement(inner, bound, buffers)
            case For() | Let():
                # Variables are equal by name: a substitution would not tell two bindings on one path apart.
                _demand(stmt.var not in bound, f"{stmt.var} is bound inside a loop or let that binds it")
                _demand(
                    isinstance(stmt.extent, Dim) or stmt.extent > 0,
                    f"the extent {stmt.extent} of {stmt.var} is not positive",
                )
                if isinstance(stmt.extent, Dim):
                    self.expression(dim_expr(stmt.extent), bound, buffers)
                last = MOST_ITERATIONS - 1 if isinstance(stmt.extent, Dim) else stmt.extent - 1
                self.statement(stmt.body, {**bound, stmt.var: (0, last)}, buffers)
            case If():
                _demand(stmt.condition.dtype == BOOL, f"the condition {stmt.condition} is a {stmt.condition.dtype}")
                self.statement(stmt.body, bound, buffers)
            case Allocate():
                _demand(stmt.buffer.scope in _ALLOCATED, f"{stmt.buffer} is allocated but {stmt.buffer.scope}")
                _demand(stmt.buffer not in buffers, f"{stmt.buffer} is allocated inside its own allocation")
                _demand(all(extent > 0 for extent in stmt.buffer.shape), f"{stmt.buffer} has no elements")
                self.statement(stmt.body, bound, buffers | {stmt.buffer})
            case Invoke():
                _demand(not bound, f"the function {stmt.function} is called inside a loop")
                for buffer in stmt.args:
                    if isinstance(buffer, Buffer):
                        _demand(buffer in buffers, f"{buffer} ({buffer.scope}) is used where it does not exist")
                        written = buffer in stmt.written and buffer in self.constant
                        _demand(not written, f"the input {buffer} is written")
            case Store():
                _demand(stmt.buffer not in self.constant, f"the input {stmt.buffer} is written")
                self.access(stmt.buffer, stmt.indices, bound, buffers)
            case Shuffle():
                is_thread_local = stmt.buffer.scope in ("local", "register")
                _demand(is_thread_local, f"{stmt.buffer} ({stmt.buffer.scope}) is written by a shuffle")
                is_valid = stmt.width in (1, 2, 4, 8, 16, 32) and 0 <= (stmt.distance or 0) < stmt.width
                _demand(is_valid, f"a shuffle over {stmt.distance} in groups of {stmt.width}")
                self.access(stmt.buffer, stmt.indices, bound, buffers)
            case TensorStmt():
                if isinstance(stmt, LoadMatrix):
                    halves = stmt.lane_elements > 1
                    _demand(halves or not stmt.transposed, f"matrices of {stmt.source.dtype} are transposed")
                for buffer, indices, _, written in accesses(stmt):
                    _demand(not (written and buffer in self.constant), f"the input {buffer} is written")
                    self.access(buffer, indices, bound, buffers)

    def expression(self, expr: Expr, bound: Ranges, buffers: frozenset[Buffer]) -> None:
        # Most nodes are here: each is visited once however often it occurs, and messages are built for errors only.
        nodes = list(parts(expr))
        dots = [node for node in nodes if isinstance(node, Dot)]
        if dots:
            bound = {**bound, **{node.var: (0, node.width - 1) for node in dots}}
        for dot in dots:
            _demand(dot.width > 1, f"the width {dot.width} of {dot} is less than two")
        for node in nodes:
            if isinstance(node, Var):
                if node not in bound:
                    raise _BrokenRuleError(f"{node} is used where nothing binds it")
            elif isinstance(node, Load):
                self.access(node.buffer, node.indices, bound, buffers)

    def access(self, buffer: Buffer, indices: tuple[Expr, ...], bound: Ranges, buffers: frozenset[Buffer]) -> None:
        if buffer not in buffers:
            raise _BrokenRuleError(f"{buffer} ({buffer.scope}) is used where it does not exist")
        if len(indices) != len(buffer.shape):
            ranks = f"{buffer} has {len(buffer.shape)} dimensions, but is accessed with {len(indices)} indices"
            raise _BrokenRuleError(ranks)
        if buffer.scope == "register":
            low, high = limits(flat_index(buffer.shape, indices), bound)
            inside = low >= 0 and high < buffer.size
            _demand(inside, f"{buffer}, of {buffer.size} registers, is accessed from number {low:g} to {high:g}")
