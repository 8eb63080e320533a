"""Random recurrences under random legal steps compute their definition, with the guards up, on one or three threads."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.measure.processes.worker_process import WorkerFailedError, WorkerProcess
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.steps import Step
from tests.support.property.checks import Verdict, explained
from tests.support.property.scans import random_scan
from tests.support.property.wild import wild_steps


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess() as process:
        yield process


def judged(worker: WorkerProcess, dag: ComputeDAG, steps: tuple[Step, ...], seed: int, threads: int) -> Verdict:
    """The verdict on a program; one whose process ends has failed."""
    try:
        verdict: Verdict = worker.call(
            "tests.support.property.scans:judge_scan", dag, steps, seed, threads, timeout_s=60.0
        )
    except WorkerFailedError as lost:
        return Verdict(failure=str(lost).partition(";")[0])
    return verdict


def run_shard(worker: WorkerProcess, seed: int, count: int) -> Counter[str]:
    """Check `count` random scans, every third under the default schedule; what the programs were like."""
    facts: Counter[str] = Counter()
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        dag = ComputeDAG(random_scan(rng))
        hardware = hardware_of(Target.host(), 3)
        steps = default_steps(dag, hardware) if number % 3 == 0 else wild_steps(dag, rng)
        verdict = judged(worker, dag, steps, number, 1 + 2 * (number % 2))
        assert not verdict.failure, f"seed {seed}, number {number}: {verdict.failure}\n{explained(dag, steps)}"
        facts.update(["refused"] if verdict.refusal else ["right", *verdict.facts])
    return facts


def test_random_scans_compute_their_definition(worker: WorkerProcess, property_seed: int) -> None:
    facts = run_shard(worker, property_seed, 40)
    assert facts["right"] >= 30, facts
    assert facts["parallelized"], facts


@pytest.mark.long
def test_three_hundred_random_scans_compute_their_definition(worker: WorkerProcess, property_seed: int) -> None:
    facts = run_shard(worker, property_seed + 1000, 300)
    wanted = ("right", "vectorized", "parallelized", "unrolled", "attached", "packed", "CR", "CHW", "RF", "CI")
    assert all(facts[name] for name in wanted), facts
