"""Measures how many instances of a network, which share a run's threads, serve the most requests a second.

Each number that divides the threads is tried with default schedules.
"""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from retune.compiler.tune.extract import ExtractedNetwork, ImportedNetwork
from retune.flows.parameters import TuneJob
from retune.flows.progress import PhaseStarted, announce
from retune.storage.runs import RunLedger
from retune.tasks.compile import compile_to
from retune.tasks.extract import extract_tasks
from retune.tasks.opaque import opaque
from retune.tasks.verify import measure_instances


def share_threads(
    job: TuneJob, network: ImportedNetwork, extracted: ExtractedNetwork, fingerprint: str
) -> tuple[TuneJob, ExtractedNetwork]:
    """The job with as many instances as do most in a second, and the network for the threads of one instance. What the
    unfinished run of the `fingerprint` has chosen stays.
    """
    before = _chosen_before(job, fingerprint)
    jobs = {count: replace(job, instances=count) for count in ([before] if before else _divisors(job.threads))}
    networks = {count: extracted if count == 1 else _extract(variant, network) for count, variant in jobs.items()}
    chosen = next(iter(jobs)) if len(jobs) == 1 else _measure(job, networks)
    return jobs[chosen], networks[chosen]


def _extract(job: TuneJob, network: ImportedNetwork) -> ExtractedNetwork:
    return extract_tasks(network, job.target, job.threads, job.options.winograd)


def _divisors(threads: int) -> list[int]:
    return [count for count in range(1, threads + 1) if threads % count == 0]


def _chosen_before(job: TuneJob, fingerprint: str) -> int | None:
    unfinished = [run for run in RunLedger(job.place).list() if run.fingerprint == fingerprint and not run.is_complete]
    return int(unfinished[-1].describe.get("instances", 1)) if unfinished else None


def _measure(job: TuneJob, networks: dict[int, ExtractedNetwork]) -> int:
    announce(PhaseStarted(f"choosing how many instances share {job.threads} threads"))
    with TemporaryDirectory(prefix="retune-") as folder:
        files = {
            count: compile_to(f"for-{count}", opaque(network), {}, Path(folder) / f"{count}.retune", {}).path
            for count, network in networks.items()
        }
        return measure_instances(job.network, files, job.threads, job.options.seed)
