"""Random operators, tuned for a few trials in this process; every program is checked in fenced buffers."""

import math
import traceback
from collections.abc import Iterator

import numpy as np

from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.core.target import Target
from retune.compiler.measure.record import TaskProgram
from retune.compiler.model import RandomModel
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import Step, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from tests.support.property.checks import HARDWARE, Verdict, explained, judge
from tests.support.property.computations import random_computation
from tests.support.property.graphs import random_graph, random_products
from tests.support.property.programs import random_program

_OPTIONS = SearchOptions(population=16, generations=1, max_location_variants=3)


def random_operator(seed: int) -> tuple[ComputeDAG, tuple[float, ...] | None]:
    """A graph, and the tolerances of its results where the generator knows them: by turns products with a tail, a graph
    of any types, an operator with unusual reads, and a usual one.
    """
    rng = np.random.default_rng([seed, 4])
    if seed % 4 < 2:
        graph = (random_products, random_graph)[seed % 4](rng)
        return graph.dag, graph.tolerances
    return (random_computation, random_program)[seed % 4 - 2](rng), None


def tuned(seed: int, trials: int = 4) -> Iterator[Verdict]:
    """The verdicts about the default schedule and `trials` programs of an operator's search, in two rounds; fewer where
    the search has no more. A search that raises, or one of its rules, is a failure.
    """
    dag, tolerances = random_operator(seed)
    task = SearchTask(f"operator {seed}", dag, Target.host(), HARDWARE)
    try:
        yield _verdict(dag, default_steps_of(task), tolerances, seed)
        policy = SketchPolicy(task, RandomModel(seed), _OPTIONS, seed)
        for text in policy.failed_rules:
            yield Verdict(failure=f"{text}\n{dag}")
        for round_index in range(2):
            candidates = policy.ask(trials // 2, round_index, round_index / 2)
            verdicts = [_verdict(dag, load_steps(candidate.steps), tolerances, seed) for candidate in candidates]
            yield from verdicts
            seconds = [math.inf if verdict.refusal else 1e-6 * (1 + place) for place, verdict in enumerate(verdicts)]
            policy.tell([TaskProgram("", one.steps, time) for one, time in zip(candidates, seconds, strict=True)])
    except Exception:
        yield Verdict(failure=f"{traceback.format_exc()}\n{dag}")


def _verdict(dag: ComputeDAG, steps: tuple[Step, ...], tolerances: tuple[float, ...] | None, seed: int) -> Verdict:
    verdict = judge(dag, steps, tolerances, seed, 1 + seed % 2)
    return Verdict(failure=f"{verdict.failure}\n{explained(dag, steps)}") if verdict.failure else verdict
