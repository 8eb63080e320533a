"""Evaluates the conditions of guards and lazy choices, at compile time where possible.

A condition that literals decide costs nothing. A condition on outer loops alone is computed where the innermost of
these loops starts.
"""

import math

from retune.compiler.codegen.memory_access import MemoryEmitter
from retune.compiler.codegen.values import Ramp, Scalar, Value
from retune.compiler.ir.affine import IndexForm
from retune.compiler.ir.expr import BOOL, Expr
from retune.compiler.ir.interval import conjuncts, slack


def holds(emitter: MemoryEmitter, condition: Expr) -> bool | Value:
    """Whether a condition holds: a literal answer, a bool for all lanes, or a bool for each lane."""
    scalars: list[tuple[str, int]] = []
    vectors: list[Value] = []
    for part, form in emitter.memo(_parts, condition):
        # A part holds where its slack is at least 0: interval arithmetic over the lanes may decide it.
        low, high = (-math.inf, math.inf) if form is None else _limits(emitter, form)
        if high < 0:
            return False
        if low >= 0:
            continue
        # Of loop counters alone: the test is hoisted to where the innermost of these loops starts.
        if form is not None and all(isinstance(emitter.binding(atom), (int, Scalar)) for atom in form.terms):
            scalars.append(_test(emitter, form))
        else:
            vectors.append(emitter.evaluate(part))
    if scalars:
        text, depth = scalars[0]
        for term, term_depth in scalars[1:]:
            depth = max(depth, term_depth)
            text = emitter.writer.hoist(depth, ("and", text, term), f"and i1 {text}, {term}")
        vectors.append(Value(text, 1, BOOL))
    if not vectors:
        return True
    result = vectors[0]
    for value in vectors[1:]:
        lhs, rhs = emitter.align([result, value])
        result = emitter.result(f"and {lhs.typed}, {rhs.text}", lhs.lanes, BOOL)
    return result


def _parts(condition: Expr) -> list[tuple[Expr, IndexForm | None]]:
    """The parts of a condition that must all hold, and their forms."""
    return [(part, slack(part)) for part in conjuncts(condition)]


def _limits(emitter: MemoryEmitter, form: IndexForm) -> tuple[float, float]:
    """The smallest and the largest value over the lanes, infinite where a loop at run time decides."""
    low = high = float(form.const)
    for atom, coefficient in form.terms.items():
        bound = emitter.binding(atom)
        if isinstance(bound, Ramp) and bound.base is None:
            ends = (coefficient * bound.offset, coefficient * (bound.offset + bound.lanes - 1))
            low, high = low + min(ends), high + max(ends)
        elif isinstance(bound, int):
            low, high = low + coefficient * bound, high + coefficient * bound
        else:
            return -math.inf, math.inf
    return low, high


def _test(emitter: MemoryEmitter, form: IndexForm) -> tuple[str, int]:
    """Whether a form of scalars is at least 0, and the scope in which that is computed."""
    offset = form.const
    terms: list[tuple[int, str, int]] = []
    for atom, coefficient in form.terms.items():
        bound = emitter.binding(atom)
        if isinstance(bound, int):
            offset += coefficient * bound
        elif isinstance(bound, Scalar):
            terms.append((bound.depth, bound.text, coefficient))
    depth, total = 0, ""
    # From the outermost loop inwards: a partial sum is computed where the deepest of its terms is known.
    for depth, text, coefficient in sorted(terms):
        if coefficient != 1:
            text = emitter.writer.hoist(depth, ("mul", text, coefficient), f"mul nsw i64 {text}, {coefficient}")
        total = emitter.writer.hoist(depth, ("add", total, text), f"add i64 {total}, {text}") if total else text
    return emitter.writer.hoist(depth, ("sge", total, -offset), f"icmp sge i64 {total}, {-offset}"), depth
