"""Programs of tasks and their outcomes as plain data.

A program is proposed, known or chosen (`TaskProgram`); its `Measurement` travels between processes; a `MeasureRecord`
is the stored row of a trial. A failure carries its status and a string whose first line is a full description, never an
invented cost.
"""

import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

from retune.compiler.measure.task_program import TaskProgram as TaskProgram
from retune.compiler.runtime.artifact import KernelArtifact

# 2 added `censored` and `contention`, 3 `sizes` and `weight`.
SCHEMA_VERSION = 3
"""Version of the row layout; a store refuses files of a higher version."""

UNTESTED_CANDIDATES = UNTESTED_CANDIDATE, FITTED_CANDIDATE = "guess", "guess, transfer"
"""The `mutation` of the record of an untested candidate, and of one fitted from a similar task."""

BY_SIZE = "by size"
"""The `mutation` of a kernel of several programs, one for each range of sizes, which are records themselves."""

CONFIRMED = "confirmed"
"""How the `mutation` of a confirmation begins: the row of a program that a run timed again at its end and that is
used from then on. The program's own mutation follows, and `parent_id` is its record.
"""

DISTURBED = 0.2
"""Above this contention a cost depends more on the machine than on the program."""

DEFAULT_SCHEDULE = "default"
"""The `mutation` of the default schedule."""

MOMENTS = range(-62_135_596_800, 253_402_300_800)
"""The seconds since 1970 of the years 1 to 9999, the range of Python's dates."""


class MeasureStatus(IntEnum):
    """How a trial ended. The numbers are those of TVM's logs; where a name differs, TVM's is an alias.

    | number | status | meaning |
    |---:|---|---|
    | 0 | `OK` | it was timed |
    | 1 | `INSTANTIATION` | the steps do not apply to the computation |
    | 2 | `COMPILE_HOST` | the code generator rejected it or crashed |
    | 3 | `COMPILE_DEVICE` | the object code cannot be loaded |
    | 4 | `RUNTIME_DEVICE` | it crashed, wrote out of bounds, returned an error, or found no memory |
    | 5 | `WRONG_ANSWER` | its results differ from the default schedule's |
    | 6 | `BUILD_TIMEOUT` | the build took more than 15 s |
    | 7 | `RUN_TIMEOUT` | the run took more than 10 s |
    | 8 | `UNKNOWN` | only in imported logs |
    """

    OK = 0
    INSTANTIATION = 1
    COMPILE_HOST = 2
    COMPILE_DEVICE = 3
    RUNTIME_DEVICE = 4
    WRONG_ANSWER = 5
    BUILD_TIMEOUT = 6
    RUN_TIMEOUT = 7
    UNKNOWN = 8

    NO_ERROR = 0
    INSTANTIATION_ERROR = 1
    UNKNOWN_ERROR = 8

    @property
    def tvm_name(self) -> str:
        """TVM's name, such as `CompileHostError`."""
        if self is MeasureStatus.OK:
            return "NoError"
        return "".join(word.capitalize() for word in self.name.split("_")) + "Error"


@dataclass(frozen=True, slots=True)
class ShapeCosts:
    """The costs of a trial at one shape: the `sizes` of the task's symbols as JSON text, the share of calls that it
    stands for, and seconds per call, one entry per repeat.
    """

    sizes: str
    weight: float
    costs: tuple[float, ...]


def mean_costs(shapes: Sequence[ShapeCosts]) -> tuple[float, ...]:
    """The expected costs over shapes, the fastest repeats of all first; none where a shape has none."""
    ranked = [(shape.weight, sorted(shape.costs)) for shape in shapes]
    repeats = min(len(costs) for _, costs in ranked)
    return tuple(sum(weight * costs[number] for weight, costs in ranked) for number in range(repeats))


@dataclass(frozen=True, slots=True)
class MeasureRecord:
    """One trial: the program, the device, the outcome, and its origin.

    `costs` are seconds per call, one entry per repeat, and empty when `status` is not OK. A `censored` trial was too
    slow compared with the best program of its task: its only cost is a probe, good enough to learn from and too rough
    to win. `contention` is the share of the fastest repeat that other processes took from its threads, or of the
    machine's speed that was lacking then, 0 to 1, None when unknown. `error` holds the full text of a failure.
    `elapsed` is the run's own clock in seconds when the trial's round was stored; it continues across a resume.
    A task with symbolic extents has `shapes`, each a row of the store, and its `costs` are the means over these.
    """

    record_id: str
    run_id: str
    network: str
    task_key: str
    task_name: str
    target: str
    device: str
    threads: int
    steps: str
    parent_id: str
    mutation: str
    predicted: float | None
    costs: tuple[float, ...]
    status: MeasureStatus
    error: str
    build_seconds: float
    run_seconds: float
    options: str
    seed: int
    round: int
    elapsed: float
    engine_version: str
    llvm_version: str
    timestamp: float
    censored: bool = False
    contention: float | None = None
    schema_version: int = SCHEMA_VERSION
    shapes: tuple[ShapeCosts, ...] = ()

    @property
    def is_unsearched(self) -> bool:
        """Whether the compilation of a network made and measured the program, outside of any search."""
        return self.mutation in (*UNTESTED_CANDIDATES, BY_SIZE)

    @property
    def is_confirmation(self) -> bool:
        """Whether a run confirmed this program at its end."""
        return self.mutation.startswith(CONFIRMED)

    @property
    def program(self) -> TaskProgram:
        """The program of the record; that of a confirmation has the record that this confirms."""
        record_id = self.parent_id if self.is_confirmation else self.record_id
        mutation = self.mutation.removeprefix(CONFIRMED).removeprefix(", ")
        origin = mutation, self.parent_id, self.predicted
        return TaskProgram(self.task_key, self.steps, self.seconds, record_id, *origin, self.is_disturbed)

    @property
    def is_disturbed(self) -> bool:
        """Whether its cost is too disturbed to learn from."""
        return (self.contention or 0.0) > DISTURBED

    @property
    def seconds(self) -> float:
        """The deciding cost: the fastest repeat, since other load only slows it down; infinite for a failure."""
        if self.status is not MeasureStatus.OK or not self.costs:
            return float("inf")
        return min(self.costs)

    def over(self, weights: Mapping[str, float]) -> "MeasureRecord | None":
        """The record with the costs that are expected for calls with these sizes, as JSON text, by their weights; None
        where it was not timed with all of them. Without weights, and for a failure, it is the record itself.
        """
        if not weights or self.status is not MeasureStatus.OK:
            return self
        known = {shape.sizes: shape for shape in self.shapes}
        if not weights.keys() <= known.keys():
            return None
        shapes = tuple(replace(known[sizes], weight=weight) for sizes, weight in weights.items())
        return replace(self, costs=mean_costs(shapes), shapes=shapes)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A program, built and timed: `costs` are seconds per call, one per repeat, empty before it was timed and unless
    `status` is OK. `artifact` is its kernel, None where the build failed and in a worker's answer. `censored` and
    `contention` are as in `retune.compiler.measure.record.MeasureRecord`. Of a task with `shapes` the costs are
    the means over these.
    """

    costs: tuple[float, ...] = ()
    status: MeasureStatus = MeasureStatus.OK
    error: str = ""
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    censored: bool = False
    contention: float | None = None
    artifact: KernelArtifact | None = None
    shapes: tuple[ShapeCosts, ...] = ()

    @classmethod
    def of_shapes(cls, by_shape: "Sequence[Measurement]", weights: Sequence[float], texts: Sequence[str]) -> Self:
        """The measurement of a program that was timed at several shapes, by the `weights` of these; the first failure,
        if any, with the sizes of its shape, as the `texts` are.
        """
        failures = (pair for pair in zip(by_shape, texts, strict=True) if pair[0].status is not MeasureStatus.OK)
        failed, text = next(failures, (cls(), ""))
        parts = zip(texts, weights, by_shape, strict=True)
        shapes = tuple(ShapeCosts(sizes, weight, result.costs) for sizes, weight, result in parts)
        return cls(
            mean_costs(shapes),
            failed.status,
            f"for the sizes {text}: {failed.error}" if failed.error else "",
            run_seconds=sum(result.run_seconds for result in by_shape),
            censored=any(result.censored for result in by_shape),
            contention=max((result.contention or 0.0 for result in by_shape), default=None),
            shapes=shapes,
        )

    @property
    def seconds(self) -> float:
        """The fastest repeat; infinite for a failure and before it was timed."""
        return min(self.costs, default=math.inf)


def in_order(builds: Sequence[Measurement], times: Sequence[Measurement]) -> list[Measurement]:
    """One measurement a build: `times` are those of successful builds, in order; others fail as their builds."""
    remaining = iter(times)
    return [
        build
        if build.artifact is None
        else replace(next(remaining), build_seconds=build.build_seconds, artifact=build.artifact)
        for build in builds
    ]


def describe(error: BaseException) -> str:
    """The text of a failure: kind and message in the first line, then the whole traceback."""
    return f"{type(error).__name__}: {error}\n\n{''.join(traceback.format_exception(error))}"
