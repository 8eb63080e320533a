"""Parts of fused loops: what a loop that was fused stands for where the fused loop was split again.

Such a part is no loop but a quotient or remainder of the loops that are left, so it is fixed where all of those are.
Forms name it like a loop.
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


def final_loops(name: str, relations: Sequence[Relation], own: frozenset[str]) -> frozenset[str]:
    """The loops that are left of `name`, which may have been split, or fused with others."""
    if name in own:
        return frozenset((name,))
    found: frozenset[str] = frozenset()
    for relation in relations:
        if isinstance(relation, SplitRelation) and relation.parent == name:
            for part in relation.parts:
                found |= final_loops(part, relations, own)
        elif isinstance(relation, FuseRelation) and name in relation.parts:
            found |= final_loops(relation.fused, relations, own)
    return found


def fixed_with_parts(fixed: set[LoopKey], fused_parts: Mapping[LoopKey, FusedPart]) -> set[LoopKey]:
    """Fixed loops, with the parts that are fixed when they are."""
    return fixed | {key for key, part in fused_parts.items() if part.loops <= fixed}


def cover_fused_parts(form: Linear, fused_parts: Mapping[LoopKey, FusedPart]) -> Linear:
    """A form over loops alone, which covers all values of the parts in it."""
    if not form.terms.keys() & fused_parts.keys():
        return form
    kept = {key: value for key, value in form.terms.items() if key not in fused_parts}
    total: Linear = Affine(form.const, kept, form.spread, False)
    for key, value in form.terms.items():
        if key in fused_parts and np.any(np.asarray(value) != 0):
            # The part's interval, without its dependence on the loops.
            reach = value * (fused_parts[key].extent - 1)
            total = total + Affine(lesser(reach, 0), {}, abs(reach), False)
    return total
