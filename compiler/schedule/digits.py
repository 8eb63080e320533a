"""In: how the loops of a stage came from its axes. Out: its *digits*: loops that were fused, where the fused loop was
split again.

Always: a digit is no loop of its own but a quotient or remainder of loops that are left, so it stands still where all
of those do. Forms name digits like loops.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.schedule.linear import Linear, LoopKey
from retune.compiler.schedule.relations import part_stride
from retune.compiler.schedule.state import FuseRelation, Number, Relation, SplitRelation


@dataclass(frozen=True, slots=True, eq=False)
class Digit:
    """A quotient or remainder of `loops`; it takes the values 0 … extent-1."""

    loops: frozenset[LoopKey]
    extent: Number


def first_digit_extent(highest: Number, stride: Number) -> Number:
    """How many values the foremost part of a fused loop takes that runs to `highest`: the split of it may overrun."""
    return highest // stride + 1


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


def standing(fixed: set[LoopKey], digits: Mapping[LoopKey, Digit]) -> set[LoopKey]:
    """Fixed loops, with the digits that stand still when they do."""
    return fixed | {key for key, digit in digits.items() if digit.loops <= fixed}


def without_digits(form: Linear, digits: Mapping[LoopKey, Digit]) -> Linear:
    """A form over loops alone, which covers all values of the digits in it."""
    if not form.terms.keys() & digits.keys():
        return form
    kept = {key: value for key, value in form.terms.items() if key not in digits}
    total = Linear(form.const, kept, form.spread, False)
    for key, value in form.terms.items():
        if key in digits and np.any(np.asarray(value) != 0):
            reach = value * (digits[key].extent - 1)
            low = np.minimum(reach, 0) if isinstance(reach, np.ndarray) else min(reach, 0)
            total = total + Linear(low, {}, np.abs(reach) if isinstance(reach, np.ndarray) else abs(reach), False)
    return total


def hulls(sizes: Mapping[str, Number]) -> Callable[[FuseRelation, Linear], Iterable[Linear]]:
    """Forms that cover the parts of a fused loop and depend on nothing."""
    return lambda relation, _: (Linear(0, {}, sizes[part] - 1, False) for part in relation.parts)


def unsplit(
    relations: Sequence[Relation],
    sizes: Mapping[str, Number],
    loop: Callable[[str], Linear],
    parts_of: Callable[[FuseRelation, Linear], Iterable[Linear]],
) -> dict[str, Linear]:
    """Everything that was split or fused, of the forms of the loops that are left; `parts_of` gives those of the parts
    of a fused loop that was split again, which are quotients and remainders.
    """
    values: dict[str, Linear] = {}

    def value_of(name: str) -> Linear:
        return values.get(name) or loop(name)

    for relation in reversed(relations):
        if isinstance(relation, SplitRelation):
            values[relation.parent] = _joined(relation, sizes, value_of)
        elif relation.fused in values:
            values.update(zip(relation.parts, parts_of(relation, values[relation.fused]), strict=True))
    return values


def _joined(relation: SplitRelation, sizes: Mapping[str, Number], value_of: Callable[[str], Linear]) -> Linear:
    total = Linear()
    stride: Number = 1
    for level in range(len(relation.parts) - 1, -1, -1):
        total = total + value_of(relation.parts[level]).scaled(stride)
        if level:
            stride = stride * part_stride(relation, level, sizes)
    return total
