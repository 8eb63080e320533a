"""Evaluates the conditions of guards and lazy choices, at compile time where possible.

A condition that literals decide costs nothing. A condition on outer loops alone is computed where the innermost of
these loops starts.
"""

import math

from retune.compiler.codegen.memory_access import MemoryEmitter
from retune.compiler.codegen.values import Ramp, Scalar, Value
from retune.compiler.ir.affine import IndexForm
from retune.compiler.ir.expr import BOOL, Expr, Var
from retune.compiler.ir.interval import conjuncts, slack


class ConditionEmitter(MemoryEmitter):
    """Writes the instructions of conditions."""

    def holds(self, condition: Expr) -> bool | Value:
        """Whether a condition holds: a literal answer, a bool for all lanes, or a bool for each lane."""
        scalars: list[tuple[str, int]] = []
        vectors: list[Value] = []
        for part, form in self.parts(condition):
            # A part holds where its slack is at least 0: interval arithmetic over the lanes may decide it.
            low, high = (-math.inf, math.inf) if form is None else self.limits(form)
            if high < 0:
                return False
            if low >= 0:
                continue
            # Of loop counters alone: the test is hoisted to where the innermost of these loops starts.
            if form is not None and all(isinstance(self.bound(atom), (int, Scalar)) for atom in form.terms):
                scalars.append(self.test(form))
            else:
                vectors.append(self.evaluate(part))
        if scalars:
            text, depth = scalars[0]
            for term, term_depth in scalars[1:]:
                depth = max(depth, term_depth)
                text = self.writer.hoisted(depth, ("and", text, term), f"and i1 {text}, {term}")
            vectors.append(Value(text, 1, BOOL))
        if not vectors:
            return True
        result = vectors[0]
        for value in vectors[1:]:
            lhs, rhs = self.aligned([result, value])
            result = self.result(f"and {lhs.typed}, {rhs.text}", lhs.lanes, BOOL)
        return result

    def parts(self, condition: Expr) -> list[tuple[Expr, IndexForm | None]]:
        """The parts of a condition that must all hold, and their forms; computed once."""
        if id(condition) not in self.conditions:
            parts = [(part, slack(part)) for part in conjuncts(condition)]
            self.conditions[id(condition)] = (parts, condition)
        return self.conditions[id(condition)][0]

    def bound(self, atom: Expr) -> int | Scalar | Ramp | None:
        """The binding of a variable; None for any other expression."""
        return self.env.get(atom) if isinstance(atom, Var) else None

    def limits(self, form: IndexForm) -> tuple[float, float]:
        """The smallest and the largest value over the lanes, infinite where a loop at run time decides."""
        low = high = float(form.const)
        for atom, coefficient in form.terms.items():
            bound = self.bound(atom)
            if isinstance(bound, Ramp) and bound.base is None:
                ends = (coefficient * bound.offset, coefficient * (bound.offset + bound.lanes - 1))
                low, high = low + min(ends), high + max(ends)
            elif isinstance(bound, int):
                low, high = low + coefficient * bound, high + coefficient * bound
            else:
                return -math.inf, math.inf
        return low, high

    def test(self, form: IndexForm) -> tuple[str, int]:
        """Whether a form of scalars is at least 0, and the scope in which that is computed."""
        offset = form.const
        terms: list[tuple[int, str, int]] = []
        for atom, coefficient in form.terms.items():
            bound = self.bound(atom)
            if isinstance(bound, int):
                offset += coefficient * bound
            elif isinstance(bound, Scalar):
                terms.append((bound.depth, bound.text, coefficient))
        depth, total = 0, ""
        # From the outermost loop inwards: a partial sum is computed where the deepest of its terms is known.
        for depth, text, coefficient in sorted(terms):
            if coefficient != 1:
                text = self.writer.hoisted(depth, ("mul", text, coefficient), f"mul nsw i64 {text}, {coefficient}")
            total = self.writer.hoisted(depth, ("add", total, text), f"add i64 {total}, {text}") if total else text
        return self.writer.hoisted(depth, ("sge", total, -offset), f"icmp sge i64 {total}, {-offset}"), depth
