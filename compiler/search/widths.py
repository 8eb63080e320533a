"""The steps of a GPU sketch with a length or depth of few choices.

Such a length need not divide the loop that it splits; it is one column of the genome.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from retune.compiler.schedule.state import Annotation, Number, State
from retune.compiler.schedule.steps import Annotate, Pipeline, Split, Step
from retune.compiler.search.genome import Rows, WidthColumn
from retune.compiler.search.sketch_rules.tensor_core import DEPTHS, choices_of
from retune.compiler.target import HardwareParams


def read_width(row: Rows, width: WidthColumn, mine: Step, given: Step) -> bool:
    """Write the inner length of a concrete split, or the depth of a pipeline, into `row`; False when it is another step
    or no choice.
    """
    if isinstance(given, Pipeline):
        length: Number | None = given.depth
    elif isinstance(given, Split) and len(given.lengths) == 1:
        length = given.lengths[0]
    else:
        return False
    if not isinstance(length, int) or length not in width.choices or type(mine) is not type(given):
        return False
    row[width.column] = length
    return with_width(mine, length) == given


def with_width(step: Step, width: Number) -> Step:
    """The step with another inner length, of a split, or depth, of a pipeline; one a program in a family."""
    if isinstance(step, Pipeline):
        return replace(step, depth=width)
    return replace(cast(Split, step), lengths=(width,))


def widths_of(state: State, steps: Sequence[Step], hardware: HardwareParams) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The splits of a finished GPU sketch whose inner part is a vector access or a block's threads, with what their
    lengths may be, the depths of pipelines, and the tiles of products on tensor cores.
    """
    products = choices_of(steps)
    for number, step in enumerate(steps):
        if number in products:
            if products[number]:
                yield number, products[number]
            continue
        if isinstance(step, Pipeline):
            yield number, DEPTHS
        if not isinstance(step, Split) or len(step.lengths) != 1 or not isinstance(step.lengths[0], int):
            continue
        for later in steps[number + 1 : number + 3]:
            if not isinstance(later, Annotate) or (later.stage, later.iter) != (step.stage, step.iter + 1):
                continue
            if later.annotation == Annotation.VECTORIZE:
                itemsize = np.dtype(state.stages[step.stage].op.dtype).itemsize
                yield number, _doubling(1, hardware.vector_unit_bytes // itemsize)
            elif later.annotation == Annotation.THREAD_X:
                most = hardware.max_threads_per_block
                if step.extent:
                    # No more threads than iterations, rounded up to a power of two.
                    most = min(most, 1 << (step.extent - 1).bit_length())
                yield number, _doubling(step.lengths[0], most)


def _doubling(first: int, most: int) -> tuple[int, ...]:
    """`first` and its doubles up to `most`."""
    found = [first]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return tuple(found)
