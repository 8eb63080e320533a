"""Steps of a GPU sketch with few choices: inner lengths of splits and depths of pipelines, one genome column each.

Such a length need not divide the loop that it splits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from retune.compiler.core.target import HardwareParams
from retune.compiler.schedule.state import Annotation, Number, State
from retune.compiler.schedule.steps import Annotate, Pipeline, Split, Step
from retune.compiler.search.genome import Rows, WidthColumn
from retune.compiler.search.rules.tensor_core import DEPTHS, choices_of


def read_width(row: Rows, width: WidthColumn, template: Step, step: Step) -> bool:
    """Write the inner length of a split, or the depth of a pipeline, into `row`; False if the step or value differs."""
    if isinstance(step, Pipeline):
        length: Number | None = step.depth
    elif isinstance(step, Split) and len(step.lengths) == 1:
        length = step.lengths[0]
    else:
        return False
    if not isinstance(length, int) or length not in width.choices or type(template) is not type(step):
        return False
    row[width.column] = length
    return with_width(template, length) == step


def with_width(step: Step, width: Number) -> Step:
    """`step` with another inner length (split) or depth (pipeline): one value, or one per program."""
    if isinstance(step, Pipeline):
        return replace(step, depth=width)
    return replace(cast(Split, step), lengths=(width,))


def widths_of(state: State, steps: Sequence[Step], hardware: HardwareParams) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The steps of a finished GPU sketch with a width column, and its choices: splits into vector accesses or a block's
    threads, pipelines, and tiles of tensor-core products.
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
    powers = [first]
    while powers[-1] * 2 <= most:
        powers.append(powers[-1] * 2)
    return tuple(powers)
