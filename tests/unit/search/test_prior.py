"""First principles order programs as any engineer would, and step back as results come in."""

import numpy as np

from retune.compiler.core.target import HardwareParams
from retune.compiler.model.features import extract
from retune.compiler.search.genome import Scores
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.program_features import blend, prior_scores, rank_correlation
from retune.compiler.search.space import SketchSpace
from retune.compiler.search.spaces import build_spaces
from tests.support.workloads import matmul, task_of

DAG = matmul(512, 512, 512)


def guesses(parts: list[list[int]], cores: int = 1, vector: int = 1, parallel: int = 0) -> list[float]:
    """What the prior says of tilings of the plain sketch (parts of i, j and k)."""
    hardware = HardwareParams(num_cores=cores)
    space: SketchSpace = build_spaces(task_of("t", DAG, hardware), SearchOptions())[0]
    rows = np.zeros((len(parts), space.layout.width), dtype=np.int64)
    rows[:, :10] = parts
    rows[:, dict(space.layout.vector)[2]] = vector
    rows[:, dict(space.layout.parallel)[2]] = parallel
    (_, group), *_ = space.groups(rows)
    features = extract(group.nests, group.choices, hardware, count=len(parts))
    return [float(score) for score in prior_scores(features, DAG.flop_count, hardware)]


def test_a_register_tile_beats_one_row_and_one_that_spills() -> None:
    one_row = [512, 1, 1, 1, 16, 1, 1, 32, 512, 1]
    tile = [64, 1, 1, 8, 16, 1, 1, 32, 512, 1]
    spilled = [8, 1, 1, 64, 32, 1, 1, 16, 512, 1]
    row, good, bad = guesses([one_row, tile, spilled])
    assert good > 1.5 * row
    assert good > 1.5 * bad
    assert 0.5 < good <= 1.0


def test_vectors_and_threads_are_worth_having() -> None:
    tile = [64, 1, 1, 8, 16, 1, 1, 32, 512, 1]
    assert guesses([tile])[0] > 4 * guesses([tile], vector=0)[0]
    assert guesses([tile], cores=4, parallel=1)[0] > 3 * guesses([tile], cores=4)[0]


def test_one_long_piece_for_two_cores_is_half_as_fast() -> None:
    even, lone = [2, 32, 1, 8, 16, 1, 1, 32, 512, 1], [1, 64, 1, 8, 16, 1, 1, 32, 512, 1]
    two, one = guesses([even, lone], cores=2, parallel=1)
    assert two > 1.8 * one


def test_rank_correlation_is_the_share_of_pairs_in_order() -> None:
    seconds: Scores = np.linspace(1e-5, 12e-5, 12)
    assert rank_correlation(1 / seconds, seconds) == 1.0
    assert rank_correlation(seconds, seconds) == 0.0  # worse than chance is no better than chance
    rng = np.random.default_rng(0)
    assert rank_correlation(rng.random(400), np.exp(rng.random(400))) < 0.15
    assert 0.3 < rank_correlation(1 / seconds * np.exp(rng.normal(0, 0.5, 12)), seconds) < 1.0
    assert rank_correlation(seconds[:4], seconds[:4]) == 1.0  # too few to tell
    assert rank_correlation(seconds, np.full(12, 1e-5)) == 1.0  # nothing was to be told apart


def test_a_pair_counts_by_how_far_apart_its_times_are() -> None:
    seconds = np.array([1.00, 1.01, 1.02, 1.03, 9.0, 9.1, 9.2, 9.3]) * 1e-5
    guess = np.array([5.0, 6.0, 7.0, 8.0, 1.0, 2.0, 3.0, 4.0])  # wrong among neighbors, right between the groups
    assert rank_correlation(guess, seconds) > 0.9


def test_blending_moves_from_the_prior_to_the_model() -> None:
    scores, prior = np.array([0.9, 0.1, -0.5, -np.inf]), np.array([0.2, 0.8, 0.5, 0.9])
    assert np.array_equal(blend(scores, prior, 0.0), scores)
    assert np.allclose(blend(scores, prior, 1.0)[:3], prior[:3])
    middle = blend(scores, prior, 0.5)
    assert middle.argmax() == 0
    assert middle[2] < middle[:2].min()
    assert np.isneginf(middle[3])
