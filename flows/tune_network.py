"""In: a network and a budget. Out: the network compiled with the best programs found, and a report.

Always: the same command after a crash goes on where the stored records end.

    tune-network
     ├─ extract-tasks      network → graph → fused operations → tuning tasks with weights
     ├─ allocate-trials    rounds of sample → measure → store → train, until the budget is spent
     ├─ compile-best       best records → re-timed winners → kernels → artifact, checked against ONNX Runtime
     └─ report             what it brought, task by task, as files and in Prefect's UI
"""


from prefect import flow
from prefect.runtime import flow_run

from retune.compiler.driver.operators import label_of
from retune.compiler.driver.report import Report
from retune.flows.allocate_trials import allocate_trials
from retune.flows.compile_network import compile_best
from retune.flows.device import resolve_device, with_task_runner
from retune.flows.parameters import TuneJob
from retune.flows.progress import PhaseStarted, announce
from retune.tasks.extract import extract_tasks
from retune.tasks.report import keep_result, publish, write_page
from retune.tasks.show import ProgressBar, show_report
from retune.tasks.store import complete_run, open_run


def run_name() -> str:
    """What the UI calls a run: its network, whatever folder that is in."""
    return f"tune-{label_of(str(flow_run.parameters['network']))}"


@flow(name="tune-network", flow_run_name=run_name)
def tune_network(
    network: str,
    trials: int | None = None,
    minutes: float | None = None,
    threads: int | None = None,
    target: str | None = None,
    seed: int | None = None,
    batch: int | None = None,
    home: str | None = None,
    shapes: list[str] | None = None,
    early_stopping: int | None = None,
    weights: str | None = None,
    winograd: bool | None = None,
    fleet: str | None = None,
    on_device: str | None = None,
) -> Report:
    """Tune `network`, a name of the zoo or the path of an ONNX file, for this machine.

    What is None is taken from the settings of the machine that the flow runs on (see `retune.compiler.settings`).
    `trials` and `minutes` limit the tuning (1000 trials when neither is given or set), `threads` is the number of
    threads the network will run on (all cores), `home` the state folder (./.retune). After
    `early_stopping` trials that did not shorten the estimated latency, tuning ends before its budget does (0: never).
    `weights` says where a kernel's weights are while it is timed: "cached", in "memory", or as in the network ("auto").
    `winograd` says whether convolutions may be computed in transformed spaces where that is measured to be faster.
    With a `fleet` (folder, prefect, dask[://HOST:PORT], ray[://HOST:PORT]) its workers build, its device `on_device`
    times. Raises: OptionError, ModelError, TargetError, StoreError, MeasureError.
    """
    job = TuneJob.checked(
        network, trials, minutes, threads, target, seed, batch, home, shapes, early_stopping, weights, winograd,
        fleet, on_device,
    )  # fmt: skip
    job = resolve_device(job)
    announce(PhaseStarted(f"extracting the tasks of {job.network}"))
    extracted = extract_tasks(job.network, job.target, job.threads, job.shapes, job.winograd)
    with open_run(job.place, job.fingerprint(extracted.task_keys), job.describe()) as run:
        bar = ProgressBar.begun(run.run_id, job.network)
        spent = with_task_runner(allocate_trials, job)(job, run.run_id, bar)
        compiled = with_task_runner(compile_best, job)(job, run.run_id, spent.rounds, spent.elapsed)
        announce(PhaseStarted("writing the report"))
        report = publish(
            run.run_id,
            job.describe(),
            spent,
            compiled.winners,
            compiled.comparison,
            compiled.coverage,
            compiled.artifact,
            job.run_folder(run.run_id),
            compiled.limits,
        )
        complete_run(run.run_id, job.place, keep_result(run.run_id, job.place, report.summary(), report.files))
        facts = write_page(run.run_id, job.place, job.run_folder(run.run_id))
        show_report(report, facts.course)
    return report
