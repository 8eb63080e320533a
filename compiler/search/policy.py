"""In: a task, a cost model, and what was measured so far. Out: the programs to measure next. Always: no I/O, and equal
seeds, options and results give equal candidates.

A round samples programs of all sketches, lets them evolve under the cost model, and proposes the best that were not
measured yet together with a few random ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt

from compiler.cost_model import CostModel, TrainingBatch
from compiler.errors import ScheduleError
from compiler.features import extract
from compiler.schedule.bounds import statement_nests
from compiler.schedule.choices import choices_of
from compiler.schedule.state import replay
from compiler.schedule.steps import Step, dump_steps, load_steps
from compiler.schedule.task import SearchTask
from compiler.search import mutation
from compiler.search.evolution import Breed, Brood, Generation, Individual, evaluate, evolve, individual, ranking
from compiler.search.genome import Rows, Scores, keys_of
from compiler.search.options import SearchOptions
from compiler.search.prior import blended, prior_scores
from compiler.search.space import SketchSpace, build_spaces

Features = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program to measure. `predicted` is the score that chose it, higher is better. `parent` identifies the program
    it was made from (see `program_id`), `mutation` says how.
    """

    steps: tuple[Step, ...]
    steps_text: str
    predicted: float | None
    parent: str | None
    mutation: str


@dataclass(frozen=True, slots=True)
class Told:
    """What was measured: seconds of a run, None or inf for a program that failed."""

    steps_text: str
    seconds: float | None


class Policy(Protocol):
    """Proposes programs of one task and learns from their results."""

    def ask(self, count: int, round_index: int) -> tuple[Candidate, ...]:
        """At most `count` programs that were not told yet; none when there is nothing left to try."""
        ...

    def tell(self, results: Sequence[Told]) -> None:
        """Take in results, of programs that were asked for or of any others of the task."""
        ...


@dataclass(frozen=True, slots=True)
class _Known:
    """A told program that one of the spaces contains."""

    seconds: float
    text: str
    space: int
    row: Rows


class SketchPolicy:
    """Sketches, sampling and evolution under a cost model, which may be shared between tasks."""

    def __init__(self, task: SearchTask, model: CostModel, options: SearchOptions | None = None, seed: int = 0) -> None:
        self.task = task
        self.model = model
        self.options = options or SearchOptions()
        self.seed = seed
        self.spaces: tuple[SketchSpace, ...] = build_spaces(task, self.options)
        self._statements = max((space.statements for space in self.spaces), default=1)
        self._breeds = tuple(
            Breed(space.layout, len(space.placements), space.deepest, space.unroll_limits) for space in self.spaces
        )
        # A GPU has no number of cores; how it shares its work is not among the features.
        self._hardware = replace(task.hardware, num_cores=max(1, task.hardware.num_cores))
        self._told: dict[str, float] = {}
        self._known: dict[str, _Known] = {}
        self._seen: set[int] = set()

    def ask(self, count: int, round_index: int) -> tuple[Candidate, ...]:
        """Propose at most `count` programs that were not told yet, the most promising first.

        Fewer, or none, come back when no further valid program was found: the task is then exhausted. The result
        depends only on the task, the seed, the options, the model, `round_index` and what was told.
        """
        if count < 1 or not self.spaces:
            return ()
        rng = np.random.default_rng([self.seed, crc32(self.task.workload_key.encode()), round_index])
        first = self._first_generation(rng)
        met = evolve(self._breeds, first, self._score, self.options, rng)
        random_share = self.options.eps_greedy if self._told else 1.0 - self.options.prior_ratio
        chosen = self._best(met, count - int(random_share * count))
        chosen = self._with_random(rng, first, chosen, count)
        for one in ranking(met, self._seen | chosen.keys()):
            if len(chosen) >= count:
                break
            chosen[one.key] = one
        return self._candidates(chosen.values())

    def tell(self, results: Sequence[Told]) -> None:
        """Take in results and let the model learn from them in one update.

        Steps of other origin are welcome: those that fit a sketch seed later populations. Steps that do not fit the
        task teach nothing and are only remembered.
        Raises: ScheduleError when a steps text cannot be read at all.
        """
        rows: list[Features] = []
        seconds: list[float] = []
        for told, features in zip(results, self._told_features(results), strict=True):
            if features is not None:
                rows.append(features)
                seconds.append(self._told[told.steps_text])
        if rows:
            most = max(len(features) for features in rows)
            block = np.stack([_padded(features, most) for features in rows])
            self.model.update(TrainingBatch(self.task.workload_key, block, np.array(seconds, dtype=np.float64)))

    @property
    def best_seconds(self) -> float:
        """The fastest time told so far, inf before any."""
        return min(self._told.values(), default=inf)

    @property
    def _prior_weight(self) -> float:
        """How much first principles count against the model: all before any result of the task, less with every one."""
        trust = 0 if self.task.target.is_gpu else self.options.prior_trials
        return trust / (trust + len(self._known)) if trust else 0.0

    def _first_generation(self, rng: np.random.Generator) -> tuple[Generation, ...]:
        """Samples of every space and the best measured programs, scored; sampled again while too few are valid."""
        share = max(1, self.options.population // len(self.spaces))
        seeds = self._seeds()
        generations: list[Generation] = []
        for number, space in enumerate(self.spaces):
            broods = [Brood.founders(seeds[number], mutation.MEASURED)]
            generation = None
            for _ in range(self.options.sample_attempts):
                broods.append(Brood.founders(space.sample(rng, share), mutation.SAMPLE))
                generation = evaluate(number, Brood.join(broods), self._score)
                if len(generation.scores) >= share // 8:
                    break
                broods = [generation.brood]
            assert generation is not None, "at least one attempt is made"
            generations.append(generation)
        return tuple(generations)

    def _seeds(self) -> list[Rows]:
        """The best measured programs as rows, by space."""
        most = int(self.options.measured_ratio * self.options.population)
        valid = [known for known in self._known.values() if isfinite(known.seconds)]
        best = sorted(valid, key=lambda known: (known.seconds, known.text))[:most]
        seeds = []
        for number, space in enumerate(self.spaces):
            rows = [known.row for known in best if known.space == number]
            seeds.append(np.array(rows, dtype=np.int64).reshape(len(rows), space.layout.width))
        return seeds

    def _score(self, number: int, rows: Rows) -> tuple[Rows, Scores, Scores]:
        """Normal form, model scores and prior of rows of one space."""
        space = self.spaces[number]
        settled = rows.copy()
        scores, prior = np.full(len(rows), -inf), np.zeros(len(rows))
        for which, group in space.groups(rows):
            settled[which] = group.rows
            good = space.legal(group)
            if not good.any():
                continue
            features = self._padded_features(extract(group.nests, group.choices, self._hardware, count=len(which)))
            guess = self._guess(features)
            predicted = blended(self.model.predict(features), guess, self._prior_weight)
            prior[which] = guess
            scores[which] = np.where(good, predicted, -inf)
        return settled, scores, prior

    def _guess(self, features: Features) -> Scores:
        """What first principles say of programs, shape (B,); of GPUs they know nothing."""
        if self.task.target.is_gpu:
            return np.ones(len(features))
        return prior_scores(features, self.task.flop_count, self._hardware)

    def _padded_features(self, features: Features) -> Features:
        """Features with as many rows a program as the largest sketch has statements, so that all are alike."""
        missing = self._statements - features.shape[1]
        return np.pad(features, ((0, 0), (0, missing), (0, 0))) if missing > 0 else features

    def _best(self, met: Sequence[Generation], count: int) -> dict[int, Individual]:
        """The best unmeasured individuals, at most `max_per_tiling` with the same tile sizes."""
        chosen: dict[int, Individual] = {}
        tilings: dict[tuple[int, bytes], int] = {}
        for one in ranking(met, self._seen):
            if len(chosen) >= count:
                break
            layout = self.spaces[one.space].layout
            tiling = (one.space, layout.tiling(one.row[None]).tobytes())
            if layout.splits and tilings.get(tiling, 0) >= self.options.max_per_tiling:
                continue
            tilings[tiling] = tilings.get(tiling, 0) + 1
            chosen[one.key] = one
        return chosen

    def _with_random(
        self, rng: np.random.Generator, first: Sequence[Generation], chosen: dict[int, Individual], count: int
    ) -> dict[int, Individual]:
        """Fill up to `count` with random members of the first generation, evenly over the spaces."""
        orders = [rng.permutation(len(one.scores)) for one in first]
        filled = dict(chosen)
        for turn in range(max((len(order) for order in orders), default=0)):
            for generation, order in zip(first, orders, strict=True):
                if len(filled) >= count:
                    return filled
                if turn < len(order):
                    one = individual(generation, int(order[turn]))
                    if one.key not in self._seen:
                        filled.setdefault(one.key, one)
        return filled

    def _candidates(self, chosen: Iterable[Individual]) -> tuple[Candidate, ...]:
        found = []
        for one in chosen:
            space = self.spaces[one.space]
            steps = space.steps(one.row)
            text = dump_steps(steps)
            if text in self._told:
                continue
            parent = None if one.parent is None else program_id(dump_steps(space.steps(one.parent)))
            found.append(Candidate(steps, text, one.score, parent, one.move))
        return tuple(found)

    def _told_features(self, results: Sequence[Told]) -> list[Features | None]:
        """Remember every result; features (S, F) of each, None where the steps do not fit the task."""
        found: list[Features | None] = [None] * len(results)
        by_space: dict[int, list[int]] = {}
        rows: dict[int, Rows] = {}
        for place, told in enumerate(results):
            steps = load_steps(told.steps_text)
            self._told[told.steps_text] = told.seconds if told.seconds is not None and told.seconds > 0.0 else inf
            for number, space in enumerate(self.spaces):
                row = space.row_of(steps)
                if row is not None:
                    by_space.setdefault(number, []).append(place)
                    rows[place] = row
                    break
            else:
                found[place] = self._foreign_features(steps)
        for number, places in by_space.items():
            space = self.spaces[number]
            stacked = np.stack([rows[place] for place in places])
            for which, group in space.groups(stacked):
                features = extract(group.nests, group.choices, self._hardware, count=len(which))
                self._seen.update(int(key) for key in keys_of(number, group.rows))
                for entry, row, block in zip(which, group.rows, self._padded_features(features), strict=True):
                    place = places[int(entry)]
                    text = results[place].steps_text
                    self._known[text] = _Known(self._told[text], text, number, row)
                    found[place] = block
        return found

    def _foreign_features(self, steps: Sequence[Step]) -> Features | None:
        try:
            state = replay(self.task.dag, steps)
            nests, choices = statement_nests(state), choices_of(state)
        except ScheduleError:
            return None
        features: Features = self._padded_features(extract(nests, choices, self._hardware, count=1))[0]
        return features


class EmptyPolicy:
    """Measures the unscheduled program once and has nothing else to offer."""

    def __init__(self, task: SearchTask) -> None:
        self.task = task
        self._told = False

    def ask(self, count: int, round_index: int) -> tuple[Candidate, ...]:  # noqa: ARG002
        """The program without any step, until it was told."""
        if count < 1 or self._told:
            return ()
        return (Candidate((), dump_steps(()), None, None, mutation.SAMPLE),)

    def tell(self, results: Sequence[Told]) -> None:
        """Remember that the program was measured."""
        self._told = self._told or any(not load_steps(told.steps_text) for told in results)


def program_id(steps_text: str) -> str:
    """A short name of a program, for lineage: eight hexadecimal digits."""
    return f"{crc32(steps_text.encode()):08x}"


def _padded(features: Features, statements: int) -> Features:
    return np.pad(features, ((0, statements - len(features)), (0, 0)))

