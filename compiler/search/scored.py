"""In: a task, and the steps of a program of it. Out: what scoring needs to know of the task; the program's features.

Always: one program at a time; a search computes the features of thousands at once with `compiler.features.extract`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from compiler.codegen.dot_instructions import dots_of
from compiler.errors import TargetError
from compiler.features import extract
from compiler.ir.dot import Pair
from compiler.schedule.choices import choices_of
from compiler.schedule.state import replay
from compiler.schedule.statements import statement_nests
from compiler.schedule.steps import Step
from compiler.schedule.task import SearchTask
from compiler.target import HardwareParams


def scored_hardware(task: SearchTask) -> HardwareParams:
    """The hardware parameters of features: a GPU has no number of cores, how it shares its work is not among them."""
    return replace(task.hardware, num_cores=max(1, task.hardware.num_cores))


def scored_dots(task: SearchTask) -> frozenset[Pair]:
    """The factor types that the target has dot products of; none where no code is generated for it."""
    try:
        return frozenset() if task.target.is_gpu else frozenset(dots_of(task))
    except TargetError:
        return frozenset()


def features_of_steps(task: SearchTask, steps: Sequence[Step]) -> NDArray[np.float32]:
    """Features (S, F) of the program that steps make of the task's computation.

    Raises: ScheduleError when they do not fit, or a tile size is unknown.
    """
    state = replay(task.scored_dag, steps)
    nests, choices = statement_nests(state), choices_of(state)
    features = extract(nests, choices, scored_hardware(task), count=1, dots=scored_dots(task))
    return np.asarray(features[0])
