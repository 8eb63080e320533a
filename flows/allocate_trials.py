"""The flow that spends the budget of an open run where it shortens the network's latency most.

A round is durable before anything is learned from it.

    restore what is stored → until the budget is spent: choose a task → sample → build, measure → store → train
"""

import time

from prefect import flow

from retune.compiler.driver.extract import Extracted
from retune.compiler.driver.tuning import Tuning, TuningSummary
from retune.flows.parameters import TuneJob
from retune.flows.progress import PhaseStarted, RoundDone, RoundStarted, RunOpened, TaskStopped, announce
from retune.storage.files import new_id
from retune.tasks.opaque import opaque
from retune.tasks.sample import sample
from retune.tasks.show import ProgressBar
from retune.tasks.store import note_round, recall, store
from retune.tasks.train import begin_tuning, keep_lessons, recall_lessons, replay, train
from retune.tasks.workers import Workers, open_workers

LEAST_PROGRESS = 0.01
"""By so much of the budget the bar in Prefect's UI grows at once: each time is a request to its API."""


@flow(name="allocate-trials", flow_run_name="allocate-trials-{job.label}")
def allocate_trials(
    job: TuneJob, extracted: Extracted, run_id: str, bar: ProgressBar | None = None
) -> TuningSummary:
    """Spend the budget of `job` on its tasks; what the run has spent before counts. `bar` is filled meanwhile."""
    home, device = job.place, job.device
    known = recall(run_id, home, extracted.task_keys, job.target, device, job.threads)
    measuring = job.measuring(extracted.constant_bytes)
    tuning = begin_tuning(opaque(extracted), job.origin(run_id, measuring), job.options)
    lessons = recall_lessons(run_id, home, tuning.origin)
    if known.own or known.programs or lessons:
        others = sum(len(lesson.seconds) for lesson in lessons if lesson.task_key not in extracted.task_keys)
        of_others = f" and {others} of other networks" if others else ""
        announce(PhaseStarted(f"learning from {len(known.own) + known.programs} stored programs{of_others}"))
    replay(run_id, tuning, opaque(known.history), opaque(known.own), opaque(lessons), opaque(known.foreign))
    budget = job.budget
    announce(RunOpened.of(tuning, str(job.place), known.programs, budget))
    began, shown = time.monotonic() - tuning.elapsed, 0.0
    bar = bar or ProgressBar.begun(run_id, job.network)
    with open_workers(measuring, job.plan, job.gpu) as workers:
        while not budget.is_spent(tuning.trials, time.monotonic() - began, tuning.round_seconds):
            if tuning.is_stalled(job.options.early_stopping):
                announce(PhaseStarted(f"stopped early: {job.options.early_stopping} trials brought nothing"))
                break
            index = tuning.choose()
            if index is None:
                break
            count = budget.round_size(job.options.batch, tuning.live, tuning.trials)
            tune_round(job, tuning, index, count, workers, began)
            spent = budget.spent(tuning.trials, time.monotonic() - began)
            if spent >= shown + LEAST_PROGRESS:
                bar.show(spent)
                shown = spent
    announce(PhaseStarted("storing what the cost model learned"))
    bar.show(1.0)
    keep_lessons(run_id, home, tuning)
    return tuning.summary()


def tune_round(job: TuneJob, tuning: Tuning, index: int, count: int, workers: Workers, began: float) -> None:
    """One round of one task. `began` is the moment, on the monotonic clock, at which the run's own clock stood at 0."""
    task, best = tuning.tasks[index].task, tuning.tasks[index].state.best_seconds
    name = f"{tuning.rounds:04d}-{task.name}"
    announce(RoundStarted(index, task.name, tuning.rounds))
    spent = job.budget.spent(tuning.trials, time.monotonic() - began)
    candidates = sample(name, tuning, index, count, spent)
    if candidates:
        measured = workers.measure(name, task, candidates, best)
        records = tuning.records_of(index, candidates, measured, time.monotonic() - began, new_id)
        store(name, job.place, opaque(records))
        train(name, tuning, index, opaque(records))
        done = RoundDone.of(tuning, index, records, job.budget)
        note_round(job.place, tuning.origin.run_id, done.row_fields())
        announce(done)
    else:
        tuning.exhaust(index, "it has no program left that was not measured")
    if tuning.tasks[index].stop_reason:
        announce(TaskStopped(index, task.name, tuning.tasks[index].stop_reason))
