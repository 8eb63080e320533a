"""Whatever the search proposes for random computations computes the definition: on a CPU, and on a GPU whose
threads run in turn.
"""

import numpy as np
import pytest

from retune.compiler.model import RandomModel
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import load_steps
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from tests.support.gpu_spaces import one_after_the_other
from tests.support.property.checks import checked
from tests.support.property.computations import random_computation
from tests.support.property.programs import inputs_of, random_program
from tests.support.tiers import long_except
from tests.support.workloads import gpu_task_of, task_of

OPTIONS = SearchOptions(population=64, generations=1)


def searched(dag: ComputeDAG, rng: np.random.Generator, seed: int) -> None:
    """Check a few candidates for both kinds of machine."""
    values = inputs_of(dag, rng)
    for gpu, task in ((False, task_of("random", dag)), (True, gpu_task_of("random", dag))):
        candidates = SketchPolicy(task, RandomModel(0), OPTIONS, seed).ask(3, 0)
        assert candidates
        for one in candidates:
            steps = load_steps(one.steps)
            checked(dag, one_after_the_other(steps) if gpu else steps, values, 2)


@pytest.mark.parametrize("seed", long_except([0], range(4)))
def test_proposals_for_random_computations_are_right(seed: int) -> None:
    for make in (random_program, random_computation):
        rng = np.random.default_rng(seed)
        searched(make(rng), rng, seed)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(20))
def test_proposals_for_many_random_computations_are_right(batch: int) -> None:
    for seed in range(100 + 10 * batch, 110 + 10 * batch):
        for make in (random_program, random_computation):
            rng = np.random.default_rng(seed)
            searched(make(rng), rng, seed)
