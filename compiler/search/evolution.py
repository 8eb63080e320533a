"""Evolutionary search over sketch rows: every distinct valid program that it met, best first.

An empty or hopeless population ends the search quietly, and equal seeds give equal results.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from retune.compiler.search import mutation
from retune.compiler.search.genome import Keys, Layout, Mask, Rows, Scores, keys_of
from retune.compiler.search.options import SearchOptions

Scorer = Callable[[int, Rows], tuple[Rows, Scores, Scores]]
"""From a space's number and genome rows (B, G) to the rows in normal form, the model's scores (B,) and the analytical
model's scores (B,). Higher is better; -inf rejects the program.
"""

_NAMES = (
    *mutation.MOVES, mutation.CROSSOVER, mutation.SAMPLE, mutation.MEASURED, mutation.NEIGHBOR, mutation.TRANSFER,
)  # fmt: skip
_ORPHANS = frozenset({mutation.SAMPLE, mutation.MEASURED, mutation.TRANSFER})
_CODE = {name: code for code, name in enumerate(_NAMES)}


@dataclass(frozen=True, slots=True)
class PopulationSpec:
    """What evolution needs to know of one space."""

    layout: Layout
    placements: int
    """How many step lists place its stages."""
    deepest: int
    """The most loops that any of its stages may run in parallel."""
    unroll_limits: tuple[int, ...] = ()
    """The unroll limits to choose from; empty: a CPU's."""


@dataclass(frozen=True, slots=True)
class Population:
    """Individuals of one space."""

    rows: Rows
    """(B, G)."""
    parents: Rows
    """(B, G): the rows that `rows` were made from; equal to `rows` where there is no parent."""
    moves: npt.NDArray[np.int8]
    """(B,): the moves that made them, as codes."""

    @classmethod
    def seeds(cls, rows: Rows, move: str) -> "Population":
        return cls(rows, rows, np.full(len(rows), _CODE[move], dtype=np.int8))

    def take(self, which: npt.NDArray[np.intp] | Mask) -> "Population":
        return Population(self.rows[which], self.parents[which], self.moves[which])

    @classmethod
    def children(cls, rows: Rows, parent: Rows, move: str) -> "Population":
        """Individuals (B, G) made from one parent (G,)."""
        return cls(rows, np.broadcast_to(parent, rows.shape), np.full(len(rows), _CODE[move], dtype=np.int8))

    @staticmethod
    def join(populations: Sequence["Population"]) -> "Population":
        return Population(
            np.concatenate([population.rows for population in populations]),
            np.concatenate([population.parents for population in populations]),
            np.concatenate([population.moves for population in populations]),
        )


@dataclass(frozen=True, slots=True)
class Individual:
    """One program met by the search."""

    space: int
    row: Rows
    """(G,): its genome."""
    key: int
    """See `keys_of`."""
    score: float
    parent: Rows | None
    """The row that `row` was made from, if any."""
    move: str


@dataclass(frozen=True, slots=True)
class Generation:
    """A scored population of one space; only valid individuals are in it."""

    space: int
    population: Population
    keys: Keys
    scores: Scores
    prior: Scores


def evolve(
    specs: Sequence[PopulationSpec],
    first: Sequence[Generation],
    score: Scorer,
    options: SearchOptions,
    rng: np.random.Generator,
) -> tuple[Generation, ...]:
    """Run all generations and return them; `first` holds a scored population per space, in the order of `specs`."""
    met = list(first)
    current = tuple(first)
    for number in range(options.generations):
        prior_share = 0.0 if number else options.prior_ratio
        populations = _next_populations(specs, current, options, rng, prior_share)
        current = tuple(evaluate(space, population, score, met) for space, population in enumerate(populations))
        met.extend(current)
    return tuple(met)


def evaluate(space: int, population: Population, score: Scorer, met: Sequence[Generation] = ()) -> Generation:
    """Normalize, score and filter one population. Equal rows, and rows in `met`, are not scored again."""
    if not len(population.rows):
        return Generation(space, population, np.zeros(0, dtype=np.uint64), np.zeros(0), np.zeros(0))
    # Normal form maps different rows to one, so many children equal an individual that is already known: rows are
    # deduplicated, and known scores reused.
    keys, once, back = np.unique(keys_of(space, population.rows), return_index=True, return_inverse=True)
    rows = population.rows[once]
    scores, prior, fresh = _recall(keys, [generation for generation in met if generation.space == space])
    if fresh.any():
        rows[fresh], scores[fresh], prior[fresh] = score(space, rows[fresh])
    valid = np.isfinite(scores[back])
    valid_population = Population(rows[back], population.parents, population.moves).take(valid)
    return Generation(
        space, valid_population, keys_of(space, valid_population.rows), scores[back][valid], prior[back][valid]
    )


def _recall(keys: Keys, met: Sequence[Generation]) -> tuple[Scores, Scores, Mask]:
    """Scores and priors (B,) of the individuals with these keys, and a mask (B,) of keys in no generation."""
    scores, prior, fresh = np.zeros(len(keys)), np.zeros(len(keys)), np.ones(len(keys), dtype=np.bool_)
    for generation in met:
        if not len(generation.keys):
            continue
        # Binary search in the sorted keys: a hash lookup per individual would be a Python loop.
        order = np.argsort(generation.keys)
        positions = order[np.minimum(np.searchsorted(generation.keys, keys, sorter=order), len(order) - 1)]
        known = fresh & (generation.keys[positions] == keys)
        scores[known], prior[known] = generation.scores[positions[known]], generation.prior[positions[known]]
        fresh &= ~known
    return scores, prior, fresh


def ranking(generations: Sequence[Generation], seen: set[int]) -> Iterator[Individual]:
    """Distinct individuals whose keys are not in `seen`, best first; ties keep the order of discovery."""
    if not generations:
        return
    positions = np.concatenate([np.arange(len(generation.scores)) for generation in generations])
    owners = np.concatenate([np.full(len(generation.scores), number) for number, generation in enumerate(generations)])
    keys = np.concatenate([generation.keys for generation in generations])
    scores = np.concatenate([generation.scores for generation in generations])
    # `np.unique` returns first occurrences ordered by key. Sorting them restores the order of discovery, which the
    # stable sort by score then keeps among ties.
    first = np.sort(np.unique(keys, return_index=True)[1])
    for entry in first[np.argsort(-scores[first], kind="stable")]:
        if int(keys[entry]) not in seen:
            yield individual(generations[owners[entry]], int(positions[entry]))


def individual(generation: Generation, position: int) -> Individual:
    population = generation.population
    move = _NAMES[int(population.moves[position])]
    parent = None if move in _ORPHANS else population.parents[position]
    key, score = int(generation.keys[position]), float(generation.scores[position])
    return Individual(generation.space, population.rows[position], key, score, parent, move)


def selection_weights(scores: Scores) -> Scores:
    """Probabilities of becoming a parent: proportional to the positive part of the score.

    When no score is positive the individuals are weighted by rank instead (the best twice the average), so that
    selection stays fair to ties and still prefers the better half.
    """
    # Roulette-wheel selection, as in Ansor. It needs weights of at least 0, but predictions of a regression may be
    # negative.
    positive = np.maximum(scores, 0.0)
    total = positive.sum()
    if total > 0.0 and np.isfinite(total):
        return np.asarray(positive / total)
    _, ranks = np.unique(scores, return_inverse=True)
    weights = ranks + 1.0
    return np.asarray(weights / weights.sum())


def _next_populations(
    specs: Sequence[PopulationSpec],
    scored: Sequence[Generation],
    options: SearchOptions,
    rng: np.random.Generator,
    prior_share: float,
) -> list[Population]:
    """Select parents over all spaces, `prior_share` of them by the analytical model, and breed within each space."""
    scores = np.concatenate([generation.scores for generation in scored])
    if not len(scores):
        return [generation.population for generation in scored]
    # Each model's weights sum to 1, so `prior_share` is the expected fraction of parents that the analytical model
    # selects, whatever the scales of the two scores.
    weights = (1.0 - prior_share) * selection_weights(scores)
    weights += prior_share * selection_weights(np.concatenate([generation.prior for generation in scored]))
    weights *= _surviving(specs, scored, weights, options.extinction_ratio)
    # Parents are drawn over all spaces together, so a sketch with better programs gets more of the population.
    picks = np.sort(rng.choice(len(scores), size=options.population, p=weights / weights.sum()))
    populations: list[Population] = []
    start = 0
    for spec, generation in zip(specs, scored, strict=True):
        end = start + len(generation.scores)
        chosen = picks[(picks >= start) & (picks < end)] - start
        populations.append(_offspring(spec, generation.population.take(chosen), options, rng))
        start = end
    return populations


def _surviving(
    specs: Sequence[PopulationSpec], scored: Sequence[Generation], weights: Scores, ratio: float
) -> npt.NDArray[np.bool_]:
    """Mask of the individuals whose family (all programs of one placement in one space) has at least `ratio` of an
    equal share of the parents. The largest family always survives.

    Each family is replayed separately, however small it is, so the small ones cost most of a generation's time.
    """
    families: list[npt.NDArray[np.int64]] = []
    first = 0
    for spec, generation in zip(specs, scored, strict=True):
        families.append(first + generation.population.rows[:, spec.layout.placement])
        first += max(1, spec.placements)
    family = np.concatenate(families)
    shares = np.bincount(family, weights=weights, minlength=first)
    alive = np.count_nonzero(np.bincount(family, minlength=first))
    least = min(ratio * weights.sum() / alive, shares.max())
    return np.asarray(shares[family] >= least)


def _offspring(
    spec: PopulationSpec, parents: Population, options: SearchOptions, rng: np.random.Generator
) -> Population:
    """One child for each parent: mutated, crossed with another parent of the space, or unchanged."""
    count = len(parents.rows)
    draw = rng.random(count)
    mutated = draw < options.mutation_probability
    unmutated = 1.0 - options.mutation_probability
    # One uniform draw decides: below `mutation_probability` a child is mutated; crossover and an unchanged copy share
    # the remaining interval.
    crossed = ~mutated & (draw < options.mutation_probability + unmutated * options.crossover_probability)
    rows, origins, moves = parents.rows.copy(), parents.parents.copy(), parents.moves.copy()
    kinds = rng.choice(len(mutation.MOVES), size=count, p=_move_weights(spec, options))
    for code, move in enumerate(mutation.MOVES):
        picked = np.flatnonzero(mutated & (kinds == code))
        rows[picked] = _move(spec, move, parents.rows[picked], options, rng)
        origins[picked], moves[picked] = parents.rows[picked], code
    picked = np.flatnonzero(crossed)
    if len(picked):
        mates = parents.rows[rng.integers(count, size=len(picked))]
        rows[picked] = mutation.exchange_columns(rng, parents.rows[picked], mates, spec.layout)
        origins[picked], moves[picked] = parents.rows[picked], _CODE[mutation.CROSSOVER]
    return Population(rows, origins, moves)


def _move(spec: PopulationSpec, move: str, rows: Rows, options: SearchOptions, rng: np.random.Generator) -> Rows:
    if move == mutation.TILE:
        return mutation.move_tile_factors(rng, rows, spec.layout, options.max_innermost)
    if move == mutation.UNROLL:
        return mutation.redraw_unroll(rng, rows, spec.layout, spec.unroll_limits or options.unroll_limits)
    if move == mutation.PLACEMENT:
        return mutation.redraw_placement(rng, rows, spec.layout, np.unique(rows[:, spec.layout.placement]))
    if move == mutation.PARALLEL:
        return mutation.redraw_parallel(rng, rows, spec.layout, spec.deepest)
    if move == mutation.WIDTH:
        return mutation.redraw_width(rng, rows, spec.layout)
    return mutation.flip_vector(rng, rows, spec.layout)


def _move_weights(spec: PopulationSpec, options: SearchOptions) -> Scores:
    """The probability of each move, 0 for those that this space has no column for."""
    layout = spec.layout
    weights = np.array(
        [
            options.tile_weight * any(split.extent > 1 for split in layout.splits),
            options.unroll_weight * bool(layout.unroll),
            options.location_weight * (spec.placements > 1),
            options.parallel_weight * (spec.deepest > 0),
            options.vector_weight * bool(layout.vector),
            options.width_weight * any(len(width.choices) > 1 for width in layout.widths),
        ]
    )
    total = weights.sum()
    # A space without any tunable column has a single program. Any move then leaves its row unchanged.
    return np.asarray(weights / total) if total > 0.0 else np.eye(len(weights))[0]
