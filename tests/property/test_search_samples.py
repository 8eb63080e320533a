"""What the search may propose, sampled all over its spaces, computes the definition: for workloads of any extents, and
for random graphs.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.measure.processes.worker_process import WorkerProcess
from retune.compiler.model import RandomModel
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from tests.support.property.checks import Verdict, explained
from tests.support.property.computations import random_computation
from tests.support.property.graphs import random_graph
from tests.support.tiers import long_except
from tests.support.workloads import conv_bn_relu, conv_residual_nhwc, matmul, max_pool, min_nm, softmax

EXTENTS = (1, 3, 5, 7, 16, 17, 24, 33)
OPTIONS = SearchOptions(population=32)
SPACES = 3
PER_SPACE = 3


def workload(rng: np.random.Generator) -> ComputeDAG:
    """One of the workloads of the search tests with random extents."""

    def extent() -> int:
        return int(rng.choice(EXTENTS))

    match int(rng.integers(6)):
        case 0:
            return matmul(extent(), extent(), extent())
        case 1:
            return conv_bn_relu(
                1,
                3 + int(rng.integers(9)),
                extent() % 9 + 1,
                extent(),
                3,
                1 + int(rng.integers(2)),
                int(rng.integers(2)),
            )
        case 2:
            return conv_residual_nhwc(1 + int(rng.integers(9)), extent(), int(rng.choice([1, 3])))
        case 3:
            return max_pool(2 + int(rng.integers(9)), extent())
        case 4:
            return softmax(extent(), extent())
    return min_nm(extent(), extent() * 3)


def samples(dag: ComputeDAG, rng: np.random.Generator, count: int) -> Iterator[tuple[Step, ...]]:
    """Up to `count` programs of some sketches, in all their placements as it comes."""
    task = SearchTask("sampled", dag, Target.host(), HardwareParams(2))
    spaces = SketchPolicy(task, RandomModel(0), OPTIONS, seed=0).spaces
    for place in rng.permutation(len(spaces))[:SPACES]:
        space, left = spaces[place], count
        for _, group in space.groups(space.sample(rng, 4 * count)):
            for row in group.rows[:left]:
                yield space.steps(row)
                left -= 1


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess() as process:
        yield process


def holds(worker: WorkerProcess, dag: ComputeDAG, tolerances: tuple[float, ...] | None, seed: int) -> int:
    """Check samples of a graph's spaces; how many were right."""
    right = 0
    for steps in samples(dag, np.random.default_rng(seed), PER_SPACE):
        verdict: Verdict = worker.call(
            "tests.support.property.checks:judge", dag, steps, tolerances, seed, 1 + right % 2, timeout_s=60.0
        )
        assert verdict.failure == "", f"seed {seed}: {verdict.failure}\n{explained(dag, steps)}"
        right += not verdict.refusal
    return right


@pytest.mark.parametrize("batch", long_except([0], range(6)))
def test_sampled_programs_of_workloads_compute_the_definition(
    batch: int, worker: WorkerProcess, property_seed: int
) -> None:
    right = 0
    for seed in range(4 * batch, 4 * batch + 4):
        rng = np.random.default_rng([property_seed, seed])
        right += holds(worker, workload(rng), None, seed)
    assert right >= 16


@pytest.mark.parametrize("batch", long_except([0], range(6)))
def test_sampled_programs_of_random_graphs_compute_the_definition(
    batch: int, worker: WorkerProcess, property_seed: int
) -> None:
    right = 0
    for seed in range(4 * batch, 4 * batch + 4):
        rng = np.random.default_rng([property_seed, 1, seed])
        if seed % 4 == 3:
            right += holds(worker, random_computation(rng), None, seed)
        else:
            graph = random_graph(rng)
            right += holds(worker, graph.dag, graph.tolerances, seed)
    assert right >= 16
