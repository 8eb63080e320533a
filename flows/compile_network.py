"""In: a tuned run. Out: the network compiled with its best records, and the evidence that it is right and faster.

Always: a record serves only after it was built, checked and timed once more.

    best records → confirm each in a fresh process → compile tuned and untuned → verify both against ONNX Runtime
"""

from dataclasses import dataclass
from pathlib import Path

from prefect import flow

from compiler.driver.coverage import CoverageReport
from compiler.driver.limits import MachineLimits
from compiler.driver.report import Comparison
from compiler.driver.winners import Winner, decided, finalists
from flows.parameters import TuneJob
from flows.progress import PhaseAdvanced, PhaseStarted, announce
from tasks.compile import compile_to
from tasks.extract import extract_tasks
from tasks.store import best_of_every_task, best_records
from tasks.verify import confirm, limits_of_machine, verify
from tasks.workers import open_workers

FINALISTS = 5
"""How many of a task's fastest records are timed again before one may serve."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled network: its file, the winners of the tuning tasks that came into question, how it compares, what
    serves all its kernels, and what the machine can do.
    """

    artifact: Path
    winners: tuple[Winner, ...]
    comparison: Comparison
    coverage: CoverageReport
    limits: MachineLimits


@flow(name="compile-network", flow_run_name="compile-{job.label}")
def compile_network(job: TuneJob, run_id: str) -> Compiled:
    """Compile the network of `job` with the best records on this machine, whichever run they come from."""
    folder = job.run_folder(run_id)
    extracted = extract_tasks(job.network, job.target, job.threads, job.shapes, job.winograd)
    known = best_of_every_task(Path(job.home), job.target, job.device, job.threads)
    best = best_records(Path(job.home), extracted.task_keys, job.target, job.device, job.threads, FINALISTS)
    layers = [finalists(layer.tasks, best, known) for layer in extracted.partition.layers()]
    announce(PhaseStarted(f"confirming the best programs of {sum(map(len, layers))} tasks"))
    with open_workers(job.measuring(extracted.constant_bytes)) as workers:
        winners: list[Winner] = []
        for layer in layers:
            winners += decided([confirm(task.name, workers, task, programs) for task, programs in layer])
            announce(PhaseAdvanced(len(winners), sum(map(len, layers))))
    serving = {winner.task_key: winner.serving for winner in winners if winner.serving is not None}
    announce(PhaseStarted("compiling the network, untuned and tuned"))
    untuned = compile_to("untuned", extracted, {}, folder / "untuned.retune")
    tuned = compile_to("tuned", extracted, serving, folder / f"{extracted.name}.retune")
    announce(PhaseStarted("comparing outputs and times"))
    comparison = verify(job.network, {"untuned": untuned.path, "tuned": tuned.path}, job.threads, job.seed)
    return Compiled(tuned.path, tuple(winners), comparison, tuned.coverage, limits_of_machine(job.threads))
