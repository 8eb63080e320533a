"""Programs of tasks, as searches, measurements, networks and compiled files name them."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaskProgram:
    """A program of a task: proposed by a search, measured, or chosen for a network.

    `steps` are its steps as text and `seconds` the time of a call, infinite while unknown and for a failure; an
    `is_disturbed` time is much too long. `record_id` is that of its record, empty if there is none. `mutation` is the
    move of the search that made it from `parent_id`, `predicted` the score that selected it, higher is better.
    `substitutes` are tried in order where it cannot be built.
    """

    task_key: str
    steps: str
    seconds: float = math.inf
    record_id: str = ""
    mutation: str = ""
    parent_id: str = ""
    predicted: float | None = None
    is_disturbed: bool = False
    substitutes: "tuple[TaskProgram, ...]" = ()
