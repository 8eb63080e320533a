"""The flow that tunes a network, compiles it with the best programs found, and reports what that brought.

The same request after a crash goes on where the stored records end.

    tune-network
     ├─ extract-tasks      network → graph → fused operations → tuning tasks with weights
     ├─ choose-instances   for throughput: untuned networks on fewer threads each → how many share the machine
     ├─ choose-precisions  ranges, times and errors of layers → the precision of each, kept with the run
     ├─ allocate-trials    rounds of sample → build, measure → store → train, until the budget is spent
     ├─ compile-best       best records → re-timed winners → kernels → artifact, checked against ONNX Runtime
     └─ report             what it brought, task by task, as files and in Prefect's UI
"""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from retune.compiler.tune.extract_dynamic import AnyImport, AnyNetwork
from retune.compiler.tune.operators import label_of
from retune.compiler.tune.report import Report
from retune.flows.allocate_trials import allocate_trials
from retune.flows.cli.launch import command_began
from retune.flows.compile_network import assign_precisions, compile_best, seconds_to_compile
from retune.flows.device import resolve_device, with_task_runner
from retune.flows.dynamic_network import import_network
from retune.flows.events import PhaseStarted, announce
from retune.flows.parameters import THROUGHPUT, TuneJob, takes_options
from retune.storage.runs import RunLedger
from retune.tasks.chain import Chain, opaque
from retune.tasks.compile import compile_to
from retune.tasks.extract import extract_tasks
from retune.tasks.fleet.workers import open_workers
from retune.tasks.show import ProgressBar, show_report
from retune.tasks.store import complete_run, open_run
from retune.tasks.verify import measure_instances
from retune.tasks.write_report import publish, write_page


def share_threads(
    job: TuneJob, network: AnyImport, extracted: AnyNetwork, fingerprint: str
) -> tuple[TuneJob, AnyNetwork]:
    """The job with as many instances as do most in a second, and the network for the threads of one instance. What the
    unfinished run of the `fingerprint` has chosen stays.
    """
    before = _chosen_before(job, fingerprint)
    jobs = {count: replace(job, instances=count) for count in ([before] if before else _divisors(job.threads))}
    networks = {count: extracted if count == 1 else _extract(variant, network) for count, variant in jobs.items()}
    chosen = next(iter(jobs)) if len(jobs) == 1 else _measure(job, networks)
    return jobs[chosen], networks[chosen]


def _extract(job: TuneJob, network: AnyImport) -> AnyNetwork:
    return extract_tasks(network, job.target, job.threads, job.options.winograd)


def _divisors(threads: int) -> list[int]:
    return [count for count in range(1, threads + 1) if threads % count == 0]


def _chosen_before(job: TuneJob, fingerprint: str) -> int | None:
    unfinished = [
        run for run in RunLedger(job.location).list() if run.fingerprint == fingerprint and not run.is_complete
    ]
    return int(unfinished[-1].describe.get("instances", 1)) if unfinished else None


def _measure(job: TuneJob, networks: dict[int, AnyNetwork]) -> int:
    announce(PhaseStarted(f"choosing how many instances share {job.threads} threads"))
    with TemporaryDirectory(prefix="retune-") as folder:
        files = {
            count: compile_to(f"for-{count}", opaque(network), {}, Path(folder) / f"{count}.retune", {}).path
            for count, network in networks.items()
        }
        return measure_instances(job.network, files, job.threads, job.options.seed)


def run_name() -> str:
    """What the UI calls a run: its network, whatever folder that is in."""
    return f"tune-{label_of(str(flow_run.parameters['network']))}"


@flow(name="tune-network", flow_run_name=run_name)
@takes_options()
def tune_network(network: str, *, shapes: list[str] | None = None, home: str | None = None, **options: Any) -> Report:
    """Tune `network`, a name of the zoo or the path of an ONNX file, for this machine.

    What is None is taken from the settings of the machine that the flow runs on (see `retune.compiler.core.settings`).
    `shapes` fixes dynamic inputs, each by a string such as `image=1,3,224,224`, or bounds them by ranges such as
    `ids=1..8,1..512`; `home` is the state folder (./.retune).
    Raises: OptionError, ModelError, TargetError, StoreError, MeasureError.
    """
    return tune(TuneJob.of(network, shapes=shapes, home=home, **options))


def tune(job: TuneJob, network: AnyImport | None = None) -> Report:
    """Tune the network of `job`, which is `network` where that is imported already. Raises: as `tune_network`."""
    began = command_began() or monotonic()
    job = resolve_device(job)
    announce(PhaseStarted(f"extracting the tasks of {job.network}"))
    chain, imported = Chain(), network or import_network(job)
    extracted = chain.run(extract_tasks, imported, job.target, job.threads, job.options.winograd)
    fingerprint = job.fingerprint(extracted.task_keys)
    if job.options.objective == THROUGHPUT:
        job, extracted = share_threads(job, imported, extracted, fingerprint)
    with open_run(job.location, fingerprint, job.describe()) as run:
        extracted, choice = assign_precisions(chain, job, imported, extracted, run.run_id)
        bar = ProgressBar.begun(run.run_id, job.network)
        with open_workers(job.measuring(extracted.constant_bytes), job.plan, job.gpu) as workers:
            about = job, extracted, run.run_id, workers
            elsewhere = monotonic() - began + seconds_to_compile(extracted)
            spent = chain.run(with_task_runner(allocate_trials, job), *about, bar, elsewhere)
            compiled = chain.run(with_task_runner(compile_best, job), *about, spent.rounds, spent.elapsed, choice)
        announce(PhaseStarted("writing the report"))
        report = chain.run(publish, run.run_id, job.describe(), spent, compiled, job.run_folder(run.run_id))
        # Completed before the page: a fault in drawing it must not make the next command repeat the run.
        chain.run(complete_run, run.run_id, job.location, report.summary(), report.files)
        facts = chain.run(write_page, run.run_id, job.location, job.run_folder(run.run_id))
        chain.run(show_report, report, facts.progress)
    return report


tune_job = flow(name="tune-network", flow_run_name="tune-{job.label}")(tune)
"""The flow for a job that was made in this process."""
