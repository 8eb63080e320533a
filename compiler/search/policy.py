"""In: a task, a cost model, and what was measured so far. Out: the programs to measure next. Always: no I/O, and equal
seeds, options and results give equal candidates.

A round samples programs of all sketches, lets them evolve under the cost model, and proposes the best that were not
measured yet together with a few random ones. The steps of a round can be called alone, for experiments.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, isfinite
from zlib import crc32

import numpy as np
import numpy.typing as npt

from compiler.cost_model import CostModel, TrainingBatch
from compiler.errors import ScheduleError
from compiler.features import extract
from compiler.schedule.bounds import infer_bounds
from compiler.schedule.state import State, replay
from compiler.schedule.steps import Step, dump_steps, load_steps
from compiler.schedule.task import SearchTask
from compiler.search import mutation
from compiler.search.asked import (
    Candidate,
    EmptyPolicy,
    Policy,
    PreloadMeasuredStates,
    SearchCallback,
    StateModel,
    Told,
    program_id,
)
from compiler.search.evolution import Breed, Brood, Generation, Individual, evaluate, evolve, individual, ranking
from compiler.search.finish import steps_of
from compiler.search.genome import Rows, Scores, keys_of
from compiler.search.gpu_spills import spilled_bytes
from compiler.search.neighbours import neighbours
from compiler.search.options import SearchOptions
from compiler.search.prior import blended, merit, prior_scores
from compiler.search.scored import features_of_steps, scored_dots, scored_hardware
from compiler.search.sketch import derive_sketches, rules_of
from compiler.search.sketch_rules import PreloadCustomSketchRule, SketchContext
from compiler.search.space import Group, SketchSpace, spaces_of
from compiler.search.transfer import refitted

__all__ = [
    "Candidate",
    "EmptyPolicy",
    "Policy",
    "PreloadCustomSketchRule",
    "PreloadMeasuredStates",
    "SketchPolicy",
    "StateModel",
    "Told",
    "program_id",
]

Features = npt.NDArray[np.float32]

_JUDGED = 256
"""By how many results, the latest ones, first principles are judged."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A told program that one of the spaces contains, and what first principles say of it."""

    seconds: float
    text: str
    space: int
    row: Rows
    guess: float


@dataclass(frozen=True, slots=True)
class _Look:
    """A program as the model sees it: its features, None where its steps do not fit the task; and, of one that a space
    contains, the number of that space, its key and its row there.
    """

    features: Features | None
    space: int = 0
    key: int = 0
    row: Rows | None = None


class SketchPolicy:
    """Sketches, sampling and evolution under a cost model, which may be shared between tasks."""

    def __init__(
        self,
        task: SearchTask,
        model: CostModel,
        options: SearchOptions | None = None,
        seed: int = 0,
        init_search_callbacks: Sequence[SearchCallback | PreloadCustomSketchRule] = (),
    ) -> None:
        """Derive the sketches; rules of one's own among `init_search_callbacks` are asked before the others."""
        self.task = task
        self.model = model
        self.options = options or SearchOptions()
        self.seed = seed
        context = SketchContext(task.hardware, self.options, task.target.is_gpu, self, task.target)
        custom = [one for one in init_search_callbacks if isinstance(one, PreloadCustomSketchRule)]
        self._sketches = derive_sketches(task.dag, context, (*custom, *rules_of(context)))
        self.spaces: tuple[SketchSpace, ...] = spaces_of(task.dag, context, self._sketches)
        self._statements = max((space.statements for space in self.spaces), default=1)
        self._breeds = tuple(
            Breed(space.layout, len(space.placements), space.deepest, space.unroll_limits) for space in self.spaces
        )
        self._hardware = scored_hardware(task)
        self._dots = scored_dots(task)
        self._told: dict[str, float] = {}
        self._known: dict[str, _Known] = {}
        self._expected: dict[str, _Look] = {}
        self._seen: set[int] = set()
        self._spilled: dict[int, int] = {}
        self._advice: list[list[Rows]] = [[] for _ in self.spaces]
        self._experiments = 0
        for callback in init_search_callbacks:
            if not isinstance(callback, PreloadCustomSketchRule):
                callback.prepare(self)

    def generate_sketches(self) -> tuple[State, ...]:
        """The sketches, in the order of their derivation; tile sizes are unknown."""
        return self._sketches

    def sample_initial_population(self, count: int = 50) -> tuple[State, ...]:
        """At most `count` different valid programs with their bounds, of all sketches alike; others at every call."""
        first = self._first_generation(self._experiment())
        rng = self._experiment()
        return tuple(self._state(one) for one in self._with_random(rng, first, {}, count).values())

    def evolutionary_search(self, states: Sequence[State], out_size: int) -> tuple[State, ...]:
        """Let programs evolve under the cost model; the best `out_size` met that were not measured, best first.

        Those among `states` that are of no sketch are left out.
        """
        rows: list[list[Rows]] = [[] for _ in self.spaces]
        for state in states:
            for number, space in enumerate(self.spaces):
                row = space.row_of(steps_of(state))
                if row is not None:
                    rows[number].append(row)
                    break
        widths = [space.layout.width for space in self.spaces]
        stacks = [np.array(found, dtype=np.int64).reshape(-1, width) for found, width in zip(rows, widths, strict=True)]
        broods = [Brood.founders(stack, mutation.SAMPLE) for stack in stacks]
        first = tuple(evaluate(number, brood, self._score) for number, brood in enumerate(broods))
        met = evolve(self._breeds, first, self._score, self.options, self._experiment())
        return tuple(self._state(one) for one in islice(ranking(met, self._seen), out_size))

    def preload(self, results: Sequence[Told]) -> None:
        """Take in results as `tell` does, without teaching the model."""
        self._told_features(results)

    def _experiment(self) -> np.random.Generator:
        """A generator for a call outside the rounds."""
        self._experiments += 1
        return np.random.default_rng([self.seed, crc32(self.task.workload_key.encode()), 0, self._experiments])

    def _state(self, one: Individual) -> State:
        return infer_bounds(replay(self.task.dag, self.spaces[one.space].steps(one.row)))

    def ask(self, count: int, round_index: int, spent: float = 0.0) -> tuple[Candidate, ...]:
        """Propose at most `count` programs that were not told yet, the most promising first.

        `spent` is the share of the budget that is gone: towards the end the neighbours of the best programs get a
        part. Fewer, or none, come back when no further valid program was found: the task is then exhausted. The result
        depends only on the task, the seed, the options, the model, `round_index`, `spent`, what was told and advised.
        """
        if count < 1 or not self.spaces:
            return ()
        for attempt in range(1 + self.options.retries):
            seeds = [self.seed, crc32(self.task.workload_key.encode()), round_index, *([attempt] if attempt else [])]
            found = self._try_round(np.random.default_rng(seeds), count, spent)
            if found:
                return found
        return ()

    def _try_round(self, rng: np.random.Generator, count: int, spent: float) -> tuple[Candidate, ...]:
        first = self._first_generation(rng)
        met = evolve(self._breeds, first, self._score, self.options, rng)
        random_share = self.options.eps_greedy if self._told else 1.0 - self.options.prior_ratio
        chosen = self._fitted(int(self.options.transfer_ratio * count))
        if self.options.finish_ratio and spent >= 1.0 - self.options.finish_ratio:
            chosen |= self._neighbours(count // 2, chosen.keys())
        wanted = count - int(random_share * count)
        sampled = int(self.options.sampled_ratio * self._prior_share * (wanted - len(chosen)))
        chosen = self._best(first, len(chosen) + sampled, chosen)
        chosen = self._best(met, wanted, chosen)
        chosen = self._with_random(rng, first, chosen, count)
        for one in ranking(met, self._seen | chosen.keys()):
            if len(chosen) >= count:
                break
            chosen[one.key] = one
        return self._candidates(chosen.values())

    def advise(self, programs: Sequence[str]) -> None:
        """Hear of good programs of similar tasks, as steps texts, the most helpful first.

        Those that fit a sketch once their tiles are fitted to this task's sizes are among the next programs asked for,
        and seed the populations. What was heard before is replaced.
        """
        self._advice = [[] for _ in self.spaces]
        if not self.options.transfer_ratio:
            return
        for text in programs:
            steps = load_steps(text)
            found = ((number, refitted(space, steps)) for number, space in enumerate(self.spaces))
            number, row = next(((number, row) for number, row in found if row is not None), (0, None))
            if row is not None:
                self._advice[number].append(row)

    def _fitted(self, count: int) -> dict[int, Individual]:
        """At most `count` of the advised programs that were not told yet."""
        broods = [Brood.founders(rows, mutation.TRANSFER) for rows in map(self._stacked, self.spaces, self._advice)]
        met = [evaluate(number, brood, self._score) for number, brood in enumerate(broods)] if count else []
        ranked = ranking(met, self._seen)
        return {one.key: one for one in islice(ranked, count)}

    def _neighbours(self, count: int, taken: Iterable[int]) -> dict[int, Individual]:
        """At most `count` programs near the best ones that were measured, the most promising first."""
        valid = [known for known in self._known.values() if isfinite(known.seconds)]
        parents = sorted(valid, key=lambda known: (known.seconds, known.text))[: self.options.finish_parents]
        met = []
        for known in parents:
            breed = self._breeds[known.space]
            limits = self.spaces[known.space].unroll_limits
            rows = neighbours(
                known.row, breed.layout, breed.placements, breed.deepest, limits, self.options.max_innermost
            )
            met.append(evaluate(known.space, Brood.children(rows, known.row, mutation.NEIGHBOUR), self._score))
        ranked = ranking(met, self._seen | set(taken))
        return {one.key: one for one in islice(ranked, count)}

    @staticmethod
    def _stacked(space: SketchSpace, rows: Sequence[Rows]) -> Rows:
        return np.array(rows, dtype=np.int64).reshape(-1, space.layout.width)

    def tell(self, results: Sequence[Told]) -> None:
        """Take in results and let the model learn from them in one update.

        Steps of other origin are welcome: those that fit a sketch seed later populations. Steps that do not fit the
        task teach nothing and are only remembered.
        Raises: ScheduleError when a steps text cannot be read at all.
        """
        rows: list[Features] = []
        seconds: list[float] = []
        for told, features in zip(results, self._told_features(results), strict=True):
            failed = self._told[told.steps_text] == inf
            if features is not None and (self.options.learn_failures or not failed):
                rows.append(features)
                seconds.append(self._told[told.steps_text])
        if rows:
            most = max(len(features) for features in rows)
            block = np.stack([_padded(features, most) for features in rows])
            self.model.update(TrainingBatch(self.task.workload_key, block, np.array(seconds, dtype=np.float64)))

    def expect(self, programs: Iterable[str]) -> None:
        """Look at programs, as steps texts, that are going to be told in some rounds: quicker at once than in each.

        Raises: ScheduleError when a steps text cannot be read at all.
        """
        fresh = dict.fromkeys(text for text in programs if text not in self._expected)
        self._expected |= self._look(list(fresh))

    @property
    def best_seconds(self) -> float:
        """The fastest time told so far, inf before any."""
        return min(self._told.values(), default=inf)

    @property
    def _prior_weight(self) -> float:
        """How much first principles count against the model: all before any result of the task, less with every one,
        and the less the worse they foretold those.
        """
        if not self.options.prior_trials:
            return 0.0
        valid = [known for known in self._known.values() if isfinite(known.seconds)][-_JUDGED:]
        seconds, guesses = (np.array([getattr(one, name) for one in valid]) for name in ("seconds", "guess"))
        trust = self.options.prior_trials * merit(guesses, seconds)
        return trust / (trust + len(self._known)) if trust else 0.0

    @property
    def _prior_share(self) -> float:
        """How little is known of the task: 1 before any result of it, less with every one."""
        trust = self.options.prior_trials
        return trust / (trust + len(self._known)) if trust else 0.0

    def _first_generation(self, rng: np.random.Generator) -> tuple[Generation, ...]:
        """Samples of every space and the best measured programs, scored; sampled again while too few are valid."""
        share = max(1, self.options.population // len(self.spaces))
        seeds = self._seeds()
        generations: list[Generation] = []
        for number, space in enumerate(self.spaces):
            advised = self._stacked(space, self._advice[number])
            broods = [Brood.founders(seeds[number], mutation.MEASURED), Brood.founders(advised, mutation.TRANSFER)]
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
            seeds.append(self._stacked(space, rows))
        return seeds

    def _score(self, number: int, rows: Rows) -> tuple[Rows, Scores, Scores]:
        """Normal form, model scores and prior of rows of one space."""
        space = self.spaces[number]
        settled = rows.copy()
        scores, prior = np.full(len(rows), -inf), np.zeros(len(rows))
        places: list[npt.NDArray[np.intp]] = []
        blocks: list[Features] = []
        for which, group in space.groups(rows):
            settled[which] = group.rows
            good = space.legal(group)
            if good.any():
                blocks.append(self._padded_features(self._extract(group))[good])
                places.append(which[good])
        if places:
            # One call for all: asking the model costs as much as a hundred programs.
            valid, features = np.concatenate(places), np.concatenate(blocks)
            prior[valid] = self._guess(features)
            scores[valid] = self._predicted(space, settled[valid], features, prior[valid])
        return settled, scores, prior

    def _predicted(self, space: SketchSpace, rows: Rows, features: Features, guess: Scores) -> Scores:
        """The scores of programs: those of the model, tempered by first principles."""
        if not isinstance(self.model, StateModel):
            return blended(self.model.predict(features), guess, self._prior_weight)
        states = [infer_bounds(replay(self.task.dag, space.steps(row))) for row in rows]
        return self.model.predict_states(self.task, states)

    def _guess(self, features: Features) -> Scores:
        """What first principles say of programs, shape (B,)."""
        return prior_scores(features, self.task.flop_count, self._hardware)

    def _extract(self, group: Group) -> Features:
        return extract(group.nests, group.choices, self._hardware, count=len(group.rows), dots=self._dots)

    def _padded_features(self, features: Features) -> Features:
        """Features with as many rows a program as the largest sketch has statements, so that all are alike."""
        missing = self._statements - features.shape[1]
        return np.pad(features, ((0, 0), (0, missing), (0, 0))) if missing > 0 else features

    def _best(self, met: Sequence[Generation], count: int, taken: dict[int, Individual]) -> dict[int, Individual]:
        """`taken`, and the best unmeasured individuals, at most `max_per_tiling` of them with the same tile sizes."""
        chosen = dict(taken)
        tilings: dict[tuple[int, bytes], int] = {}
        for one in ranking(met, self._seen | taken.keys()):
            if len(chosen) >= count:
                break
            layout = self.spaces[one.space].layout
            tiling = (one.space, layout.tiling(one.row[None]).tobytes())
            if layout.splits and tilings.get(tiling, 0) >= self.options.max_per_tiling:
                continue
            if self._spills(one):
                continue
            tilings[tiling] = tilings.get(tiling, 0) + 1
            chosen[one.key] = one
        return chosen

    def _spills(self, one: Individual) -> bool:
        """Whether threads of a program for a GPU keep more in memory, for want of registers, than is allowed."""
        allowed = self.options.refuse_spills
        if allowed < 0 or not self.task.target.is_gpu:
            return False
        if one.key not in self._spilled:
            self._spilled[one.key] = spilled_bytes(self.task, self.spaces[one.space].steps(one.row))
        return self._spilled[one.key] > allowed

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
        found: dict[str, Candidate] = {}
        for one in chosen:
            space = self.spaces[one.space]
            steps = space.steps(one.row)
            text = dump_steps(steps)
            if text in self._told or text in found:  # told in words only, or of two sketches
                continue
            parent = None if one.parent is None else program_id(dump_steps(space.steps(one.parent)))
            found[text] = Candidate(steps, text, one.score, parent, one.move)
        return tuple(found.values())

    def _told_features(self, results: Sequence[Told]) -> list[Features | None]:
        """Remember every result; features (S, F) of each, None where the steps do not fit the task."""
        texts = [told.steps_text for told in results]
        looks = self._look([text for text in texts if text not in self._expected])
        looks |= {text: self._expected.pop(text) for text in texts if text in self._expected}
        for told in results:
            text = told.steps_text
            self._told[text] = told.seconds if told.seconds is not None and told.seconds > 0.0 else inf
            look = looks[text]
            if look.row is not None:
                self._seen.add(look.key)
                guess = 0.0 if look.features is None else float(self._guess(look.features[None])[0])
                self._known[text] = _Known(self._told[text], text, look.space, look.row, guess)
        return [looks[text].features for text in texts]

    def _look(self, texts: Sequence[str]) -> dict[str, _Look]:
        """Place programs in the spaces and extract their features, of all that are alike at once."""
        looks: dict[str, _Look] = {}
        placed: list[list[tuple[str, Rows]]] = [[] for _ in self.spaces]
        for text in texts:
            steps = load_steps(text)
            for number, space in enumerate(self.spaces):
                row = space.row_of(steps)
                if row is not None:
                    placed[number].append((text, row))
                    break
            else:
                looks[text] = _Look(self._foreign_features(steps))
        for number, found in enumerate(placed):
            space = self.spaces[number]
            for which, group in space.groups(np.stack([row for _, row in found])) if found else ():
                features = self._padded_features(self._extract(group))
                keys = keys_of(number, group.rows)
                for entry, key, row, block in zip(which, keys, group.rows, features, strict=True):
                    looks[found[int(entry)][0]] = _Look(block, number, int(key), row)
        return looks

    def _foreign_features(self, steps: Sequence[Step]) -> Features | None:
        try:
            features = features_of_steps(self.task, steps)
        except ScheduleError:
            return None
        return _padded(features, max(self._statements, len(features)))


def _padded(features: Features, statements: int) -> Features:
    return np.pad(features, ((0, statements - len(features)), (0, 0)))
