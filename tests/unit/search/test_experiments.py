"""The steps of a round called alone, programs known beforehand, rules and custom models, and how candidates are
shared out.
"""

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from retune.compiler.core.errors import OptionError
from retune.compiler.driver.build import build_kernel
from retune.compiler.measure.record import TaskProgram
from retune.compiler.model import RandomModel, TrainingBatch
from retune.compiler.runtime.buffers import aligned_array, aligned_copy
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.primitives import split
from retune.compiler.schedule.state import State
from retune.compiler.schedule.steps import Split, dump_steps, load_steps, steps_of
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search import mutation
from retune.compiler.search import policy as policy_module
from retune.compiler.search.evolution import Generation, Population, PopulationSpec, evaluate, evolve
from retune.compiler.search.genome import Rows, Scores
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.search.protocol import EmptyPolicy, Policy, PreloadMeasuredStates
from retune.compiler.search.rules import PreloadCustomSketchRule
from retune.compiler.search.spaces import build_spaces
from tests.support.workloads import conv_residual_nhwc, matmul, softmax, task_of

OPTIONS = SearchOptions(population=128, generations=2)
TINY = task_of("tiny", matmul(10, 10, 4))


def text_of(state: State) -> str:
    """The history of a state as text."""
    return dump_steps(steps_of(state))


class Wants(RandomModel):
    """Scores 1 for programs whose text has a line with both words, else 0."""

    def __init__(self, *words: str) -> None:
        super().__init__(0)
        self.words = words

    def predict_states(self, task: SearchTask, states: Sequence[State]) -> NDArray[np.float64]:
        assert task is TINY
        return np.array([float(self.has(state)) for state in states])

    def has(self, state: State) -> bool:
        return any(all(word in line for word in self.words) for line in str(state).splitlines())


def test_evolution_finds_a_good_program_from_bad_ones() -> None:
    model = Wants("k", ".1 ", "(0,2)")
    policy = SketchPolicy(TINY, model, SearchOptions(population=60, generations=3), seed=3)
    bad = [state for state in policy.sample_initial_population(60) if not model.has(state)]
    assert 20 <= len(bad) <= 60
    found = policy.evolutionary_search(bad, 50)
    assert len({text_of(state) for state in found}) == len(found) == 50
    assert model.has(found[0])
    good = [model.has(state) for state in found]
    assert good == sorted(good, reverse=True), "the best come first"


def test_a_mutation_changes_the_granularity_of_parallel_loops() -> None:
    task = task_of("square", matmul(1024, 1024, 1024))
    only = SearchOptions(
        population=40,
        generations=2,
        mutation_probability=1.0,
        tile_weight=0.0,
        unroll_weight=0.0,
        location_weight=0.0,
        parallel_weight=1.0,
        vector_weight=0.0,
    )
    policy = SketchPolicy(task, RandomModel(0), only, seed=0)
    (start,) = policy.sample_initial_population(1)
    lines = [line for state in policy.evolutionary_search([start], 40) for line in str(state).splitlines()]
    found = {line.split()[1] for line in lines if "parallel " in line}
    depths = {name.count("@") for name in found}
    assert len(depths) >= 3, found
    assert all(name.startswith("i.0") for name in found)


def test_sketches_are_those_that_programs_are_sampled_of() -> None:
    policy = SketchPolicy(task_of("softmax", softmax(1, 1024)), RandomModel(0), OPTIONS)
    assert len(policy.generate_sketches()) == len(policy.spaces) == 9
    states = policy.sample_initial_population(27)
    assert len({text_of(state) for state in states}) == 27
    structures = {tuple(stage.op.name for stage in state.stages) for state in states}
    assert len(structures) == 4


def test_samples_are_the_same_for_the_same_seed_and_differ_between_calls() -> None:
    first, second = (SketchPolicy(TINY, RandomModel(0), OPTIONS, seed=5) for _ in range(2))
    texts = [[text_of(state) for state in policy.sample_initial_population(20)] for policy in (first, second)]
    assert texts[0] == texts[1]
    assert [text_of(state) for state in first.sample_initial_population(20)] != texts[0]
    states = first.sample_initial_population(10)
    second.sample_initial_population(20)
    second.sample_initial_population(10)
    found = [[text_of(one) for one in policy.evolutionary_search(states, 10)] for policy in (first, second)]
    assert found[0] == found[1]


def test_what_is_known_beforehand_is_neither_proposed_nor_learned_but_bred_from() -> None:
    class Spy(RandomModel):
        updates = 0

        def update(self, batch: TrainingBatch) -> None:  # noqa: ARG002
            self.updates += 1

    fresh = SketchPolicy(TINY, RandomModel(0), OPTIONS)
    known = [TaskProgram("", one.steps, 1e-3 if number % 2 else inf) for number, one in enumerate(fresh.ask(40, 0))]
    model = Spy()
    for results in (known, lambda task: known if task is TINY else []):
        policy = SketchPolicy(TINY, model, OPTIONS, init_search_callbacks=[PreloadMeasuredStates(results)])
        assert policy.best_seconds == 1e-3
        candidates = policy.ask(40, 0)
        assert not {program.steps for program in candidates} & {told.steps for told in known}
        assert not {text_of(program) for program in policy.evolutionary_search([], 10)} & {
            program.steps for program in known
        }
    assert model.updates == 0


def test_the_empty_policy_measures_nothing_twice() -> None:
    (only,) = EmptyPolicy(TINY).ask(8, 0)
    assert only.steps == "[]"
    assert EmptyPolicy(TINY, [PreloadMeasuredStates([TaskProgram("", only.steps)])]).ask(8, 0) == ()


def rule_with_a_split(lengths: list[int | None]) -> PreloadCustomSketchRule:
    """Two sketches: the program as it is, and with a loop of stage 2 split."""

    def condition(policy: SketchPolicy, state: State, stage: int) -> int:
        return 2 if stage == len(state.stages) - 1 and policy.task is TINY else 0

    def apply(policy: SketchPolicy, state: State, stage: int) -> Iterable[tuple[State, int]]:
        assert policy.task is TINY
        return [(state, -1), (split(state, stage, 0, lengths)[0], -1)]

    return PreloadCustomSketchRule(condition, apply)


def test_programs_of_a_custom_rule_compute_the_definition() -> None:
    policy = SketchPolicy(TINY, RandomModel(0), OPTIONS, init_search_callbacks=[rule_with_a_split([8])])
    shapes = [[iterator.extent for iterator in state.stages[2].iters] for state in policy.generate_sketches()]
    assert shapes == [[10, 10, 4], [2, 8, 10, 4]]
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((10, 4), np.float32), rng.standard_normal((4, 10), np.float32)
    candidates = policy.ask(20, 0)
    assert {len([step for step in load_steps(program.steps) if step.tag == "SP"]) for program in candidates} == {0, 1}
    for one in candidates:
        artifact = build_kernel(TINY, load_steps(one.steps), "kernel")
        result = aligned_array((10, 10), "float32")
        packed = artifact.args[1].packing.pack(b) if artifact.args[1].packing else b
        load_kernels([artifact])["kernel"].bind([aligned_copy(a), aligned_copy(packed), result], 2)()
        np.testing.assert_allclose(result, a @ b, rtol=1e-5, atol=1e-5, err_msg=one.steps)


def test_lengths_that_a_rule_leaves_open_are_searched() -> None:
    policy = SketchPolicy(TINY, RandomModel(0), OPTIONS, init_search_callbacks=[rule_with_a_split([None])])
    states = policy.sample_initial_population(40)
    lengths = {step.lengths for state in states for step in state.steps if isinstance(step, Split)}
    assert lengths == {(1,), (2,), (5,), (10,)}


def test_custom_policy_needs_ask_and_tell_only() -> None:
    class Fixed:
        def __init__(self) -> None:
            self.results: list[TaskProgram] = []

        def ask(self, count: int, round_index: int) -> tuple[TaskProgram, ...]:  # noqa: ARG002
            return (TaskProgram("", dump_steps(()), mutation="mine"),)

        def tell(self, results: Sequence[TaskProgram]) -> None:
            self.results.extend(results)

    policy: Policy = Fixed()
    (one,) = policy.ask(4, 0)
    policy.tell([TaskProgram("", one.steps, 1.0)])
    assert isinstance(policy, Fixed)
    assert policy.results == [TaskProgram("", "[]", 1.0)]


@pytest.mark.parametrize(("share", "count", "random"), [(0.25, 40, 10), (0.05, 64, 3), (0.05, 19, 0)])
def test_a_share_of_every_batch_is_drawn_at_random(share: float, count: int, random: int) -> None:
    task = task_of("conv", conv_residual_nhwc(14, 32))
    options = SearchOptions(population=256, generations=1, eps_greedy=share, sampled_ratio=0.0)
    policy = SketchPolicy(task, RandomModel(0), options)
    policy.preload([TaskProgram("", policy.ask(1, 0)[0].steps, 1e-3)])
    candidates = policy.ask(count, 1)
    assert len(candidates) == count
    best = [one.predicted for one in candidates[: count - random]]
    assert best == sorted(best, key=lambda score: -(score or 0.0))
    drawn = candidates[count - random :]
    assert all(one.mutation in (mutation.SAMPLE, mutation.MEASURED) for one in drawn)
    if drawn:
        assert min(best, key=lambda score: score or 0.0) > np.median([one.predicted or 0.0 for one in drawn])


def test_mutations_are_drawn_as_often_as_their_weights_say() -> None:
    options = SearchOptions(population=20_000, generations=1, mutation_probability=1.0, prior_ratio=0.0)
    space = build_spaces(task_of("conv", conv_residual_nhwc(14, 32)), options)[0]
    counts: dict[int, int] = {}

    def score(_: int, rows: Rows) -> tuple[Rows, Scores, Scores]:
        return rows, np.ones(len(rows)), np.ones(len(rows))

    rng = np.random.default_rng(0)
    first = evaluate(0, Population.seeds(space.sample(rng, 50), mutation.SAMPLE), score)
    spec = PopulationSpec(space.layout, len(space.placements), space.deepest)
    _, second = evolve((spec,), (first,), score, options, rng)
    assert isinstance(second, Generation)
    for move in second.population.moves.tolist():
        counts[move] = counts.get(move, 0) + 1
    weights = [0.86, 0.04, 0.05, 0.04, 0.01, 0.0]
    for code, weight in enumerate(weights):
        expected = 20_000 * weight
        assert abs(counts.get(code, 0) - expected) <= 5 * np.sqrt(expected) + 1e-9


def test_equal_scores_select_parents_uniformly() -> None:
    space = build_spaces(TINY, OPTIONS)[0]

    def score(_: int, rows: Rows) -> tuple[Rows, Scores, Scores]:
        return rows, np.zeros(len(rows)), np.zeros(len(rows))

    rng = np.random.default_rng(0)
    first = evaluate(0, Population.seeds(space.sample(rng, 30), mutation.SAMPLE), score)
    spec = PopulationSpec(space.layout, len(space.placements), space.deepest)
    _, second = evolve((spec,), (first,), score, SearchOptions(population=500, generations=1), rng)
    assert len({row.tobytes() for row in second.population.parents}) > 20


def test_parameters_of_tvm_are_options_under_other_names() -> None:
    params = {
        "eps_greedy": 0.1,
        "evolutionary_search_population": 512,
        "evolutionary_search_num_iters": 2,
        "cpu_multi_level_tiling_structure": "ssrs",
        "disable_change_compute_location": 1,
        "max_vectorize_size": 16,
    }
    options = SearchOptions.of_params(params)
    expected = SearchOptions(eps_greedy=0.1, population=512, generations=2, tiling="SSRS", max_location_variants=1)
    assert options == expected
    with pytest.raises(OptionError, match="no parameter 'population'"):
        SearchOptions.of_params({"population": 3})
    with pytest.raises(OptionError, match="eps_greedy"):
        SearchOptions.of_params({"eps_greedy": 2.0})


@pytest.mark.parametrize(("count", "generations"), [(4, 1), (16, 1), (17, 2), (64, 3), (200, 3)])
def test_a_small_batch_is_evolved_for_fewer_generations(
    count: int, generations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def counted(specs: Any, first: Any, score: Any, options: SearchOptions, rng: Any) -> Any:
        seen.append(options.generations)
        return evolve(specs, first, score, options, rng)

    monkeypatch.setattr(policy_module, "evolve", counted)
    SketchPolicy(TINY, RandomModel(0), SearchOptions(population=60, generations=3), seed=3).ask(count, 0)
    assert seen == [generations]
