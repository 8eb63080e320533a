"""The flow that tunes one operator: its best program goes into the records.

The same request after a crash goes on where the stored records end.

    tune-operator
     ├─ allocate-trials    rounds of sample → build, measure → store → train, until the budget is spent
     ├─ confirm            the best programs timed in turn, the winner once more in a fresh process
     └─ report
"""

from dataclasses import replace
from time import monotonic
from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from retune.compiler.core.errors import OptionError
from retune.compiler.core.options import BUDGET, FLEET, MACHINE, SEARCH
from retune.compiler.tune.extract import Extracted
from retune.compiler.tune.operators import Operator
from retune.compiler.tune.report import Report
from retune.compiler.tune.winners import SHORTLIST, Confirmation, confirmations, shortlist
from retune.flows.allocate_trials import allocate_trials
from retune.flows.cli.launch import command_began
from retune.flows.device import resolve_device, with_task_runner
from retune.flows.events import PhaseStarted, announce
from retune.flows.parameters import THROUGHPUT, TuneJob, takes_options
from retune.storage.files import new_id
from retune.tasks.chain import Chain, opaque
from retune.tasks.extract import extract_any
from retune.tasks.fleet.workers import Workers, open_workers
from retune.tasks.show import ProgressBar
from retune.tasks.store import best_records, complete_run, open_run, store
from retune.tasks.verify import confirm, time_programs
from retune.tasks.write_report import publish_operator, write_page

OF_OPERATORS = (BUDGET, MACHINE, SEARCH, FLEET)
"""The options that an operator can be tuned with."""
_CONFIRM_SECONDS = 3.0
"""For the confirmation of one kernel and the report."""


def run_name() -> str:
    """What the UI calls a run: the operator and its sizes."""
    return "-".join(["tune", flow_run.parameters["workload"], *map(str, flow_run.parameters["args"])])


@flow(name="tune-operator", flow_run_name=run_name)
@takes_options(*OF_OPERATORS)
def tune_operator(
    workload: str,
    args: list[int | float | str | list[int] | None],
    module: str = "",
    *,
    home: str | None = None,
    **options: Any,
) -> Report:
    """Tune one operator for this machine.

    `workload` is an operator of `retune.compiler.tune.operators` (matmul, batch_matmul, conv2d, depthwise_conv2d,
    softmax, layer_norm) and `args` are its sizes: `matmul` takes rows, columns and inner extent. With `module`, which
    is imported and so runs with your rights, it is the name of a workload that the module registers with
    `auto_scheduler.register_workload`, and `args` are its arguments. `home` is the state folder (./.retune).
    Raises: OptionError, TargetError, StoreError.
    """
    return tune(TuneJob.of(str(Operator.of(workload, args, module)), home=home, **options))


def tune(job: TuneJob) -> Report:
    """Tune the operator of `job`. Raises: as `tune_operator`."""
    began = command_began() or monotonic()
    job = resolve_device(job)
    if job.options.objective == THROUGHPUT:
        raise OptionError("the objective throughput is for networks: an operator has no instances")
    chain = Chain()
    extracted = chain.run(extract_any, job.network, job.target, job.threads)
    with open_run(job.location, job.fingerprint(extracted.task_keys), job.describe()) as run:
        bar = ProgressBar.begun(run.run_id, job.network)
        with open_workers(job.measuring(extracted.constant_bytes), job.plan, job.gpu) as workers:
            elsewhere = monotonic() - began + _CONFIRM_SECONDS
            about = job, extracted, run.run_id, workers
            spent = chain.run(with_task_runner(allocate_trials, job), *about, bar, elsewhere)
            announce(PhaseStarted("confirming the best programs"))
            winner = chain.run(with_task_runner(confirm_operator, job), job, extracted, workers)
            run_info = job.run_info(run.run_id, job.measuring(extracted.constant_bytes))
            run_info = replace(run_info, round=spent.rounds, elapsed=spent.elapsed)
            chain.run(store, "confirmation", job.location, opaque(confirmations([winner], run_info, new_id)))
        folder = job.run_folder(run.run_id)
        report = chain.run(publish_operator, run.run_id, job.describe(), spent, winner, folder)
        chain.run(complete_run, run.run_id, job.location, report.summary(), report.files)
        chain.run(write_page, run.run_id, job.location, folder)
    return report


tune_operator_job = flow(name="tune-operator", flow_run_name="tune-{job.label}")(tune)
"""The flow for a job that was made in this process."""


@flow(name="confirm-operator", flow_run_name="confirm-operator")
def confirm_operator(job: TuneJob, extracted: Extracted, workers: Workers) -> Confirmation:
    """Time the best programs of the job's operator in turn; the winner must be right in a fresh process."""
    (task,) = extracted.tasks
    chain = Chain()
    best = chain.run(best_records, job.location, extracted.tasks, job.target, job.device, job.threads, SHORTLIST)
    ((_, programs),) = shortlist([task], best)
    timed = chain.run(time_programs, task.name, workers, opaque(task), opaque(programs))
    return chain.run(confirm, workers, opaque([timed]))[0]
