"""Evolution with a planted score: it finds what the score rewards, survives scores that say nothing, and is seeded."""

from collections import Counter
from itertools import pairwise

import numpy as np

from retune.compiler.search import mutation
from retune.compiler.search.evolution import (
    Generation,
    Population,
    PopulationSpec,
    evaluate,
    evolve,
    individual,
    ranking,
    selection_weights,
)
from retune.compiler.search.genome import Layout, Rows, Scores, keys_of
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.space import SketchSpace
from retune.compiler.search.spaces import build_spaces
from tests.support.workloads import matmul, task_of

OPTIONS = SearchOptions(population=200, generations=6)


def tiled_matmul() -> SketchSpace:
    """The plain tiled sketch of a tiny matmul."""
    return build_spaces(task_of("t", matmul(10, 10, 4)), OPTIONS)[0]


def run(space: SketchSpace, rows: Rows, seed: int) -> tuple[Generation, ...]:
    """Evolve under a score of 1 for an inner reduction of exactly 2 iterations, else 0."""
    column = space.layout.splits[2].start + 1

    def score(_: int, given: Rows) -> tuple[Rows, Scores, Scores]:
        good = (given[:, column] == 2).astype(np.float64)
        return given, good, np.zeros(len(given))

    specs = (PopulationSpec(space.layout, len(space.placements), space.deepest),)
    first = (evaluate(0, Population.seeds(rows, mutation.SAMPLE), score),)
    return evolve(specs, first, score, OPTIONS, np.random.default_rng(seed))


def bad_rows(space: SketchSpace, seed: int) -> Rows:
    """Fifty samples of which none is good."""
    rows = space.sample(np.random.default_rng(seed), 50)
    rows[:, space.layout.splits[2].columns] = [4, 1]
    return rows


def test_a_good_program_is_found_from_bad_ones_only() -> None:
    space = tiled_matmul()
    for seed in range(20):
        best = next(iter(ranking(run(space, bad_rows(space, seed), seed), set())))
        assert best.score == 1.0
        assert best.parent is not None


def test_equal_seeds_give_equal_rankings() -> None:
    space = tiled_matmul()
    rows = bad_rows(space, 0)
    first, second = ([one.key for one in ranking(run(space, rows, 5), set())] for _ in range(2))
    other = [one.key for one in ranking(run(space, rows, 6), set())]
    assert first == second
    assert first != other


def test_ranking_is_distinct_sorted_and_leaves_out_what_was_seen() -> None:
    space = tiled_matmul()
    met = run(space, bad_rows(space, 1), 1)
    everything = list(ranking(met, set()))
    keys = [one.key for one in everything]
    assert len(keys) == len(set(keys))
    assert all(a.score >= b.score for a, b in pairwise(everything))
    seen = set(keys[:10])
    assert [one.key for one in ranking(met, seen)] == keys[10:]


def test_no_valid_program_is_scored_twice_and_recalled_scores_are_the_same() -> None:
    space = tiled_matmul()
    scored: list[int] = []

    def score(number: int, given: Rows) -> tuple[Rows, Scores, Scores]:
        keys = keys_of(number, given)
        scored.extend(keys.tolist())
        return given, (keys % 97 + 1).astype(np.float64), (keys % 89 + 1).astype(np.float64)

    specs = (PopulationSpec(space.layout, len(space.placements), space.deepest),)
    first = (evaluate(0, Population.seeds(space.sample(np.random.default_rng(0), 50), mutation.SAMPLE), score),)
    met = evolve(specs, first, score, OPTIONS, np.random.default_rng(0))
    assert len(scored) == len(set(scored)) < sum(len(one.keys) for one in met)
    for one in met:
        np.testing.assert_array_equal(one.scores, one.keys % 97 + 1)
        np.testing.assert_array_equal(one.prior, one.keys % 89 + 1)


def test_no_valid_program_ends_quietly() -> None:
    space = tiled_matmul()

    def score(_: int, given: Rows) -> tuple[Rows, Scores, Scores]:
        return given, np.full(len(given), -np.inf), np.zeros(len(given))

    specs = (PopulationSpec(space.layout, len(space.placements), space.deepest),)
    first = (evaluate(0, Population.seeds(space.sample(np.random.default_rng(0), 20), mutation.SAMPLE), score),)
    met = evolve(specs, first, score, OPTIONS, np.random.default_rng(0))
    assert list(ranking(met, set())) == []


def test_selection_follows_positive_scores_and_falls_back_to_ranks() -> None:
    assert np.allclose(selection_weights(np.array([1.0, 3.0, -5.0])), [0.25, 0.75, 0.0])
    assert np.allclose(selection_weights(np.zeros(4)), 0.25)
    negative = selection_weights(np.array([-3.0, -1.0, -2.0]))
    assert negative.argmax() == 1
    assert negative.min() > 0.0


def test_families_with_few_parents_die_out_unless_all_may_live() -> None:
    layout = Layout.of(((0, 64, 2),), (), ())
    rows = np.array([[64, 1, placement] for placement in (0, 1, 2) for _ in range(100)], dtype=np.int64)

    def score(_: int, given: Rows) -> tuple[Rows, Scores, Scores]:
        return given, np.array([8.0, 4.0, 1.0])[given[:, layout.placement]], np.zeros(len(given))

    first = (evaluate(0, Population.seeds(rows, mutation.SAMPLE), score),)
    specs = (PopulationSpec(layout, 3, 0),)
    for ratio, alive in ((0.5, {0, 1}), (0.0, {0, 1, 2}), (1.0, {0})):
        options = SearchOptions(population=300, generations=1, prior_ratio=0.0, extinction_ratio=ratio)
        _, second = evolve(specs, first, score, options, np.random.default_rng(0))
        assert set(second.population.rows[:, layout.placement].tolist()) == alive


def test_moves_are_drawn_by_their_weights_and_crossover_by_its_probability() -> None:
    space = tiled_matmul()
    options = SearchOptions(
        population=4000,
        generations=1,
        mutation_probability=0.5,
        crossover_probability=0.4,
        tile_weight=0.6,
        unroll_weight=0.2,
        parallel_weight=0.2,
        vector_weight=0.0,
    )

    def score(_: int, given: Rows) -> tuple[Rows, Scores, Scores]:
        return given, np.ones(len(given)), np.ones(len(given))

    seeds = Population.seeds(space.sample(np.random.default_rng(0), 500), mutation.SAMPLE)
    first = (evaluate(0, seeds, score),)
    specs = (PopulationSpec(space.layout, 1, space.deepest),)
    _, second = evolve(specs, first, score, options, np.random.default_rng(0))
    found = Counter(individual(second, place).move for place in range(len(second.scores)))
    wanted = {
        mutation.TILE: 0.3,
        mutation.UNROLL: 0.1,
        mutation.PARALLEL: 0.1,
        mutation.CROSSOVER: 0.2,
        mutation.SAMPLE: 0.3,
    }
    assert found.keys() == wanted.keys()
    for move, share in wanted.items():
        assert abs(found[move] / 4000 - share) < 0.03, move
