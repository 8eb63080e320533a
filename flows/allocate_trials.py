"""The flow that spends the budget of an open run where it shortens the network's latency most.

A round is durable before anything is learned from it.

    restore what is stored → until the budget is spent: choose a task → sample → build, measure → store → train
"""

import time
from collections.abc import Callable

from prefect import flow

from retune.compiler.tune.extract import Extracted
from retune.compiler.tune.tuning import Tuning, TuningSummary
from retune.compiler.tune.tuning_loop import EMPTY_ROUND, Budget, Round
from retune.flows.events import PhaseStarted, RoundDone, RoundStarted, RunOpened, TaskStopped, announce
from retune.flows.parameters import TuneJob
from retune.storage.files import new_id
from retune.storage.runs import append_round
from retune.tasks.chain import Chain, opaque
from retune.tasks.fleet.workers import Workers
from retune.tasks.sample import sample
from retune.tasks.show import ProgressBar
from retune.tasks.store import recall, store
from retune.tasks.train import begin_tuning, recall_checkpoint, replay, save_checkpoint, train

LEAST_PROGRESS = 0.01
"""By so much of the budget the bar in Prefect's UI grows at once: each time is a request to its API."""


@flow(name="allocate-trials", flow_run_name="allocate-trials-{job.label}")
def allocate_trials(
    job: TuneJob,
    extracted: Extracted,
    run_id: str,
    workers: Workers,
    bar: ProgressBar | None = None,
    elsewhere: float = 0.0,
) -> TuningSummary:
    """Spend the budget of `job` on its tasks; what the run has spent before counts, and so do the seconds that the
    command spends `elsewhere`. `bar` is filled meanwhile.
    """
    started = time.monotonic()
    home, device = job.location, job.device
    chain = Chain()
    known = chain.run(recall, run_id, home, extracted.task_keys, job.target, device, job.threads)
    run_info = job.run_info(run_id, job.measuring(extracted.constant_bytes))
    tuning = chain.run(begin_tuning, opaque(extracted), run_info, job.options)
    training_data = chain.run(recall_checkpoint, run_id, home, tuning.run_info)
    if known.own or known.programs or training_data:
        others = sum(len(batch.seconds) for batch in training_data if batch.task_key not in extracted.task_keys)
        of_others = f" and {others} of other networks" if others else ""
        announce(PhaseStarted(f"learning from {len(known.own) + known.programs} stored programs{of_others}"))
    history, own, foreign = opaque(known.history), opaque(known.own), opaque(known.foreign)
    chain.run(replay, opaque(tuning), history, own, opaque(training_data), foreign)
    budget = job.budget.without(elsewhere + time.monotonic() - started)
    announce(RunOpened.of(tuning, str(job.location), known.programs, budget))
    # The run's clock goes on where the last stored round stopped it; pauses between two processes do not count.
    began, shown = time.monotonic() - tuning.elapsed, 0.0

    def clock() -> float:
        return time.monotonic() - began

    bar = bar or ProgressBar.begun(run_id, job.network)
    for round_ in tuning.rounds_until(budget, job.options.batch, job.options.early_stopping, clock):
        tune_round(chain, job, budget, tuning, round_, workers, clock)
        spent = budget.spent(tuning.trials, clock())
        if spent >= shown + LEAST_PROGRESS:
            bar.show(spent)
            shown = spent
    if tuning.ended:
        announce(PhaseStarted(tuning.ended))
    announce(PhaseStarted("storing what the cost model learned"))
    bar.show(1.0)
    # A run that measured nothing knows nothing new, and would push an older checkpoint out.
    if tuning.trials:
        chain.run(save_checkpoint, home, opaque(tuning))
    return tuning.summary()


def tune_round(
    chain: Chain,
    job: TuneJob,
    budget: Budget,
    tuning: Tuning,
    round_: Round,
    workers: Workers,
    clock: Callable[[], float],
) -> None:
    """One round of one task, after the last run of `chain`. `clock` is the run's own, in seconds, which `budget`
    limits.
    """
    index, task = round_.index, tuning.tasks[round_.index].task
    name = f"{tuning.rounds:04d}-{task.name}"
    announce(RoundStarted(index, task.name, tuning.rounds))
    candidates = chain.run(sample, name, opaque(tuning), index, round_.count, round_.spent)
    if candidates:
        measured = workers.measure(chain, name, task, candidates, tuning.tasks[index].state.best_seconds)
        records = tuning.records_of(index, candidates, measured, clock(), new_id)
        # Stored before it is learned: after a crash the replay sees every result that influenced a decision.
        chain.run(store, name, job.location, opaque(records))
        chain.run(train, name, opaque(tuning), index, opaque(records))
        done = RoundDone.of(tuning, index, records, budget)
        append_round(job.location, tuning.run_info.run_id, done.row_fields())
        announce(done)
    else:
        tuning.exhaust(index, EMPTY_ROUND)
    if tuning.tasks[index].stop_reason:
        announce(TaskStopped(index, task.name, tuning.tasks[index].stop_reason))
