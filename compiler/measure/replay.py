"""In: stored records. Out: a measurer that answers from them. Always: the same question has the same answer;
nothing is run.
"""

from collections.abc import Iterable, Sequence

from retune.compiler.errors import MeasureError
from retune.compiler.measure.record import MeasureRecord
from retune.compiler.measure.results import Measurement
from retune.compiler.schedule.steps import Step, dump_steps
from retune.compiler.schedule.task import SearchTask


class ReplayMeasurer:
    """Answers from `records`; of several records of one program the first counts."""

    def __init__(self, records: Iterable[MeasureRecord]) -> None:
        self._known: dict[tuple[str, str], Measurement] = {}
        for record in records:
            measurement = Measurement(
                record.costs,
                record.status,
                record.error,
                record.build_seconds,
                record.run_seconds,
                record.censored,
                record.contention,
            )
            self._known.setdefault((record.task_key, record.steps), measurement)

    def measure(
        self, task: SearchTask, candidates: Sequence[Sequence[Step]], best_seconds: float | None = None
    ) -> list[Measurement]:
        """What the records say about each candidate; `best_seconds` changes nothing.

        Raises: MeasureError when a candidate was never measured.
        """
        del best_seconds
        return [self._answer(task, dump_steps(steps)) for steps in candidates]

    def _answer(self, task: SearchTask, steps: str) -> Measurement:
        try:
            return self._known[task.workload_key, steps]
        except KeyError:
            raise MeasureError(
                f"no record of task {task.name} has the steps {steps}; {len(self._known)} programs are known"
            ) from None
