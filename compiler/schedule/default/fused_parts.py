"""Parts of fused loops: the values of a loop that was fused, where the fused loop was split again.

Such a part is no loop but a quotient or remainder of the remaining loops, so it is fixed where all of those are. Forms
name it like a loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.ir.affine import Affine, lesser
from retune.compiler.schedule.linear import Linear, LoopKey
from retune.compiler.schedule.state import FuseRelation, Number, Relation, SplitRelation


@dataclass(frozen=True, slots=True, eq=False)
class FusedPart:
    """A quotient or remainder of `loops`; it takes the values 0 … extent-1."""

    loops: frozenset[LoopKey]
    extent: Number


def final_loops(name: str, relations: Sequence[Relation], loops: frozenset[str]) -> frozenset[str]:
    """The members of `loops` that `name`, which may have been split or fused, became."""
    if name in loops:
        return frozenset((name,))
    result: frozenset[str] = frozenset()
    for relation in relations:
        if isinstance(relation, SplitRelation) and relation.parent == name:
            for part in relation.parts:
                result |= final_loops(part, relations, loops)
        elif isinstance(relation, FuseRelation) and name in relation.parts:
            result |= final_loops(relation.fused, relations, loops)
    return result


def fixed_with_parts(fixed: set[LoopKey], fused_parts: Mapping[LoopKey, FusedPart]) -> set[LoopKey]:
    """Fixed loops, with the parts that are fixed when they are."""
    return fixed | {key for key, part in fused_parts.items() if part.loops <= fixed}


def cover_fused_parts(form: Linear, fused_parts: Mapping[LoopKey, FusedPart]) -> Linear:
    """A form over loops alone, which covers all values of the parts in it."""
    if not form.terms.keys() & fused_parts.keys():
        return form
    loop_terms = {key: value for key, value in form.terms.items() if key not in fused_parts}
    total: Linear = Affine(form.const, loop_terms, form.spread, False)
    for key, value in form.terms.items():
        if key in fused_parts and np.any(np.asarray(value) != 0):
            # The part's interval, without its dependence on the loops.
            reach = value * (fused_parts[key].extent - 1)
            total = total + Affine(lesser(reach, 0), {}, abs(reach), False)
    return total
