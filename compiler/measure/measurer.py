"""In: schedules of a task. Out: one `Measurement` each, in order. Always: a bad candidate is a value;
MeasureError means that measuring itself is impossible just now and may be tried again.
"""

from collections.abc import Sequence
from typing import Protocol, Self

from compiler.measure.builder import LocalBuilder
from compiler.measure.options import MeasureOptions
from compiler.measure.results import Measurement, join
from compiler.measure.runner import LocalRunner
from compiler.schedule.steps import Step
from compiler.schedule.task import SearchTask

__all__ = ["LocalMeasurer", "Measurement", "Measurer"]


class Measurer(Protocol):
    """Whatever can say how fast programs are."""

    def measure(
        self, task: SearchTask, candidates: Sequence[Sequence[Step]], best_seconds: float | None = None
    ) -> list[Measurement]:
        """One measurement per candidate, in order; `best_seconds` is the best cost of the task so far.

        Raises: MeasureError when nothing could be measured for reasons that lie outside the candidates.
        """
        ...


class LocalMeasurer:
    """Builds and runs candidates on this machine."""

    def __init__(self, builder: LocalBuilder, runner: LocalRunner) -> None:
        self.builder = builder
        self.runner = runner

    @classmethod
    def with_options(cls, options: MeasureOptions, n_parallel: int | None = None) -> Self:
        """A builder and a runner that follow `options`."""
        return cls(LocalBuilder(options.build_timeout_s, n_parallel), LocalRunner(options=options))

    def measure(
        self, task: SearchTask, candidates: Sequence[Sequence[Step]], best_seconds: float | None = None
    ) -> list[Measurement]:
        """Build all candidates, then run them one after the other. Raises: MeasureError, see `Measurer`."""
        builds = self.builder.build(task, candidates)
        runs = self.runner.run(task, builds, best_seconds)
        return [join(build, run) for build, run in zip(builds, runs, strict=True)]

    def close(self) -> None:
        """End the worker processes."""
        self.builder.close()
        self.runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
