"""Search policy of a task: proposes the programs to measure next, from a cost model and the results so far.

There is no I/O; equal seeds, options and results give equal candidates.

A round samples programs of all sketches, evolves them under the cost model, and proposes the best unmeasured programs
together with a few random programs. The steps of a round can be called alone, for experiments.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from math import inf
from zlib import crc32

import numpy as np
import numpy.typing as npt

from retune.compiler.measure.record import TaskProgram
from retune.compiler.model import CostModel, TrainingBatch
from retune.compiler.schedule.bounds import infer_bounds
from retune.compiler.schedule.state import State, replay
from retune.compiler.schedule.steps import dump_steps, load_steps, steps_of
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search import mutation
from retune.compiler.search.evolution import (
    Generation,
    Individual,
    Population,
    PopulationSpec,
    evaluate,
    evolve,
    individual,
    ranking,
)
from retune.compiler.search.genome import Keys, Rows, Scores, keys_of
from retune.compiler.search.gpu.spills import spilled_bytes
from retune.compiler.search.mutation import neighbors
from retune.compiler.search.observed import Located, ObservedPrograms
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.program_features import Features, TaskFeatures, blend, pad_statements
from retune.compiler.search.protocol import SearchCallback, StateModel, program_id
from retune.compiler.search.rules import PreloadCustomSketchRule, SketchContext
from retune.compiler.search.sketch import derive_sketches, rules_of
from retune.compiler.search.space import SketchSpace
from retune.compiler.search.spaces import spaces_of
from retune.compiler.search.transfer import refit


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
        """Derive the sketches; custom rules among `init_search_callbacks` come before the others."""
        self.task = task
        self.model = model
        self.options = options or SearchOptions()
        self.seed = seed
        context = SketchContext(task.hardware, self.options, self, task.target)
        custom = [callback for callback in init_search_callbacks if isinstance(callback, PreloadCustomSketchRule)]
        self.failed_rules: list[str] = []
        """A sentence for each rule that raised; the search goes on with the other sketches."""
        self._sketches = derive_sketches(task.dag, context, (*custom, *rules_of(context)), self.failed_rules)
        self.spaces: tuple[SketchSpace, ...] = spaces_of(task.dag, context, self._sketches, self.failed_rules)
        self._specs = tuple(
            PopulationSpec(space.layout, len(space.placements), space.deepest, space.unroll_limits)
            for space in self.spaces
        )
        self._features = TaskFeatures(task, max((space.statements for space in self.spaces), default=1))
        self.observed = ObservedPrograms(self.spaces, self._features, self.options.prior_trials)
        self._spilled: dict[int, int] = {}
        self._advice: list[list[Rows]] = [[] for _ in self.spaces]
        self._experiments = 0
        self._scored: list[tuple[Keys, Features]] = []
        for callback in init_search_callbacks:
            if not isinstance(callback, PreloadCustomSketchRule):
                callback.prepare(self)

    def generate_sketches(self) -> tuple[State, ...]:
        """The sketches, in the order of their derivation; tile sizes are unknown."""
        return self._sketches

    def sample_initial_population(self, count: int = 50) -> tuple[State, ...]:
        """At most `count` different valid programs with their bounds, evenly over the sketches, new at every call."""
        first = self._first_generation(self._experiment())
        rng = self._experiment()
        return tuple(self._state(member) for member in self._with_random(rng, first, {}, count).values())

    def evolutionary_search(self, states: Sequence[State], out_size: int) -> tuple[State, ...]:
        """Evolve programs under the cost model; return the best `out_size` unmeasured ones, best first.

        States of no sketch are ignored.
        """
        rows: list[list[Rows]] = [[] for _ in self.spaces]
        for state in states:
            for number, space in enumerate(self.spaces):
                row = space.row_of(steps_of(state))
                if row is not None:
                    rows[number].append(row)
                    break
        widths = [space.layout.width for space in self.spaces]
        stacks = [
            np.array(members, dtype=np.int64).reshape(-1, width) for members, width in zip(rows, widths, strict=True)
        ]
        populations = [Population.seeds(stack, mutation.SAMPLE) for stack in stacks]
        first = tuple(evaluate(number, population, self._score) for number, population in enumerate(populations))
        met = evolve(self._specs, first, self._score, self.options, self._experiment())
        return tuple(self._state(member) for member in islice(ranking(met, self.observed.keys), out_size))

    def preload(self, results: Sequence[TaskProgram]) -> None:
        """Take in results as `tell` does, without teaching the model."""
        self.observed.observe(results)

    def _experiment(self) -> np.random.Generator:
        """A generator for a call outside the rounds."""
        self._experiments += 1
        self._scored = []
        return np.random.default_rng([self.seed, crc32(self.task.workload_key.encode()), 0, self._experiments])

    def _state(self, member: Individual) -> State:
        return infer_bounds(replay(self.task.dag, self.spaces[member.space].steps(member.row)))

    def ask(self, count: int, round_index: int, spent: float = 0.0) -> tuple[TaskProgram, ...]:
        """Propose at most `count` unmeasured programs, the most promising first.

        `spent` is the used share of the budget: towards the end neighbors of the best programs get a part. Fewer
        programs, or none, mean that no further valid program was found: the task is exhausted. The result depends only
        on the task, the seed, the options, the model, `round_index`, `spent`, the results and the advice.
        """
        if count < 1 or not self.spaces:
            return ()
        for attempt in range(1 + self.options.retries):
            # Seeds depend on the workload and not on the task's position, so the programs of a task do not change when
            # others are added. `crc32` is the same in every process, unlike Python's `hash` of strings.
            seeds = [self.seed, crc32(self.task.workload_key.encode()), round_index, *([attempt] if attempt else [])]
            # Each placement is replayed separately, however few programs it has, so a small batch samples few
            # placements. The last attempt samples all, so that a task ends only when it is exhausted.
            is_last = attempt == self.options.retries
            few = None if is_last else -(-count // self.options.batch_per_placement)
            candidates = self._try_round(np.random.default_rng(seeds), count, spent, few)
            if candidates:
                return candidates
        return ()

    def _try_round(
        self, rng: np.random.Generator, count: int, spent: float, few: int | None
    ) -> tuple[TaskProgram, ...]:
        first = self._first_generation(rng, few)
        generations = min(self.options.generations, -(-count // self.options.batch_per_generation))
        met = evolve(self._specs, first, self._score, replace(self.options, generations=generations), rng)
        # Epsilon-greedy exploration. Before any result only the analytical model ranks: it decides `prior_ratio` of the
        # first batch, and the rest is random.
        random_share = self.options.eps_greedy if self.observed.seconds else 1.0 - self.options.prior_ratio
        chosen = self._refit_advice(int(self.options.transfer_ratio * count))
        if self.options.finish_ratio and spent >= 1.0 - self.options.finish_ratio:
            chosen |= self._neighbors(count // 2, chosen.keys())
        wanted = count - int(random_share * count)
        # Evolution amplifies a model's errors: it moves toward programs that are overrated. While the model is
        # uncertain, a part of the batch comes from the initial samples, on which evolution had no influence.
        sampled = int(self.options.sampled_ratio * self.observed.uncertainty * (wanted - len(chosen)))
        chosen = self._best(first, len(chosen) + sampled, chosen)
        chosen = self._best(met, wanted, chosen)
        chosen = self._with_random(rng, first, chosen, count)
        for member in ranking(met, self.observed.keys | chosen.keys()):
            if len(chosen) >= count:
                break
            chosen[member.key] = member
        return self._candidates(chosen.values())

    def warm_start(self, programs: Sequence[str]) -> None:
        """Take good programs of similar tasks, as steps strings, the most helpful first.

        Programs that fit a sketch once their tiles are fitted to this task's sizes are among the next candidates, and
        seed the populations. Earlier advice is replaced.
        """
        self._advice = [[] for _ in self.spaces]
        if not self.options.transfer_ratio:
            return
        for text in programs:
            steps = load_steps(text)
            fits = ((number, refit(space, steps)) for number, space in enumerate(self.spaces))
            number, row = next(((number, row) for number, row in fits if row is not None), (0, None))
            if row is not None:
                self._advice[number].append(row)

    def _refit_advice(self, count: int) -> dict[int, Individual]:
        """At most `count` unmeasured programs of the advice."""
        met = [
            evaluate(number, Population.seeds(rows, mutation.TRANSFER), self._score)
            for number, rows in enumerate(map(self._stack, self.spaces, self._advice))
            if count
        ]
        ranked = ranking(met, self.observed.keys)
        return {member.key: member for member in islice(ranked, count)}

    def _neighbors(self, count: int, taken: Iterable[int]) -> dict[int, Individual]:
        """At most `count` neighbors of the best measured programs, the most promising first."""
        met = []
        for parent in self.observed.best(self.options.finish_parents):
            spec = self._specs[parent.space]
            limits = self.spaces[parent.space].unroll_limits
            rows = neighbors(parent.row, spec.layout, spec.placements, spec.deepest, limits, self.options.max_innermost)
            met.append(evaluate(parent.space, Population.children(rows, parent.row, mutation.NEIGHBOR), self._score))
        ranked = ranking(met, self.observed.keys | set(taken))
        return {member.key: member for member in islice(ranked, count)}

    @staticmethod
    def _stack(space: SketchSpace, rows: Sequence[Rows]) -> Rows:
        return np.array(rows, dtype=np.int64).reshape(-1, space.layout.width)

    def tell(self, results: Sequence[TaskProgram]) -> None:
        """Take in results and let the model learn from them in one update.

        Steps of any origin are accepted: steps that fit a sketch seed later populations. Steps that do not fit the task
        teach nothing and are only remembered. Disturbed timings do not train the model, unless most are disturbed.
        Raises: ScheduleError when a steps text cannot be read at all.
        """
        rows: list[Features] = []
        seconds: list[float] = []
        # On a machine that is always busy, all timings are disturbed.
        timed = [result for result in results if result.seconds < inf]
        includes_disturbed = 2 * sum(result.is_disturbed for result in timed) > len(timed)
        for result, features in zip(results, self.observed.observe(results), strict=True):
            best = self.observed.seconds[result.steps]
            teaches = includes_disturbed or not result.is_disturbed
            if features is not None and teaches and (self.options.learn_failures or best < inf):
                rows.append(features)
                seconds.append(best)
        if rows:
            most = max(len(features) for features in rows)
            block = np.stack([pad_statements(features, most) for features in rows])
            self.model.update(TrainingBatch(self.task.workload_key, block, np.array(seconds, dtype=np.float64)))

    def expect(self, programs: Iterable[str]) -> None:
        """Extract the features of programs, as steps strings, that a later `tell` reports: one batch is faster.

        Raises: ScheduleError when a steps text cannot be read at all.
        """
        self.observed.expect(programs)

    @property
    def best_seconds(self) -> float:
        """The fastest time so far, inf before any."""
        return self.observed.best_seconds

    def _first_generation(self, rng: np.random.Generator, placements: int | None = None) -> tuple[Generation, ...]:
        """Scored samples of every space and the best measured programs; sampled again while too few are valid. Each
        attempt draws at most `placements` placements of a space.
        """
        share = max(1, self.options.population // len(self.spaces))
        seeds = self._seeds()
        generations: list[Generation] = []
        for number, space in enumerate(self.spaces):
            advised = self._stack(space, self._advice[number])
            populations = [
                Population.seeds(seeds[number], mutation.MEASURED),
                Population.seeds(advised, mutation.TRANSFER),
            ]
            generation = None
            for _ in range(self.options.sample_attempts):
                populations.append(Population.seeds(space.sample(rng, share, placements), mutation.SAMPLE))
                generation = evaluate(number, Population.join(populations), self._score)
                # Rejection sampling: it is repeated until an eighth of the space's share of the population is legal, at
                # most `sample_attempts` times.
                if len(generation.scores) >= share // 8:
                    break
                populations = [generation.population]
            assert generation is not None, "at least one attempt is made"
            generations.append(generation)
        return tuple(generations)

    def _seeds(self) -> list[Rows]:
        most = int(self.options.measured_ratio * self.options.population)
        best = self.observed.best(most)
        seeds = []
        for number, space in enumerate(self.spaces):
            rows = [known.row for known in best if known.space == number]
            seeds.append(self._stack(space, rows))
        return seeds

    def _score(self, number: int, rows: Rows) -> tuple[Rows, Scores, Scores]:
        space = self.spaces[number]
        settled = rows.copy()
        scores, prior = np.full(len(rows), -inf), np.zeros(len(rows))
        positions: list[npt.NDArray[np.intp]] = []
        blocks: list[Features] = []
        for indices, group in space.groups(rows):
            settled[indices] = group.rows
            good = space.legal(group)
            if good.any():
                blocks.append(self._features.of_group(group)[good])
                positions.append(indices[good])
        if positions:
            # One call for all: a prediction costs as much as a hundred programs.
            valid, features = np.concatenate(positions), np.concatenate(blocks)
            prior[valid] = self._features.prior(features)
            self._scored.append((keys_of(number, settled[valid]), features))
            scores[valid] = self._predict(space, settled[valid], features, prior[valid])
        return settled, scores, prior

    def _predict(self, space: SketchSpace, rows: Rows, features: Features, prior: Scores) -> Scores:
        """The scores of programs: the learned model's, blended with the analytical model's."""
        if not isinstance(self.model, StateModel):
            return blend(self.model.predict(features), prior, self.observed.prior_weight)
        states = [infer_bounds(replay(self.task.dag, space.steps(row))) for row in rows]
        return self.model.predict_states(self.task, states)

    def _best(self, met: Sequence[Generation], count: int, taken: dict[int, Individual]) -> dict[int, Individual]:
        """`taken`, and the best unmeasured individuals, at most `max_per_tiling` of them with the same tile sizes."""
        chosen = dict(taken)
        tilings: dict[tuple[int, bytes], int] = {}
        for member in ranking(met, self.observed.keys | taken.keys()):
            if len(chosen) >= count:
                break
            layout = self.spaces[member.space].layout
            tiling = (member.space, layout.tiling(member.row[None]).tobytes())
            # Keeps a batch diverse: programs with equal tile sizes differ only in placement and annotations.
            if layout.splits and tilings.get(tiling, 0) >= self.options.max_per_tiling:
                continue
            # Tested last: the assembler takes about half a second per program.
            if self._spills(member):
                continue
            tilings[tiling] = tilings.get(tiling, 0) + 1
            chosen[member.key] = member
        return chosen

    def _spills(self, member: Individual) -> bool:
        """Whether a GPU program spills more bytes per thread than `refuse_spills` allows."""
        allowed = self.options.refuse_spills
        if allowed < 0 or not self.spaces[member.space].has_registers:
            return False
        if member.key not in self._spilled:
            self._spilled[member.key] = spilled_bytes(self.task, self.spaces[member.space].steps(member.row))
        return self._spilled[member.key] > allowed

    def _with_random(
        self, rng: np.random.Generator, first: Sequence[Generation], chosen: dict[int, Individual], count: int
    ) -> dict[int, Individual]:
        """Fill up to `count` with random members of the first generation, evenly over the spaces."""
        orders = [rng.permutation(len(generation.scores)) for generation in first]
        filled = dict(chosen)
        for position in range(max((len(order) for order in orders), default=0)):
            for generation, order in zip(first, orders, strict=True):
                if len(filled) >= count:
                    return filled
                if position < len(order):
                    member = individual(generation, int(order[position]))
                    if member.key not in self.observed.keys:
                        filled.setdefault(member.key, member)
        return filled

    def _candidates(self, chosen: Collection[Individual]) -> tuple[TaskProgram, ...]:
        candidates: dict[str, TaskProgram] = {}
        located: dict[str, Located] = {}
        features = self._features_of({member.key for member in chosen})
        for member in chosen:
            space = self.spaces[member.space]
            text = dump_steps(space.steps(member.row))
            if text in self.observed.seconds or text in candidates:  # known as steps text, or of two sketches
                continue
            parent = "" if member.parent is None else program_id(dump_steps(space.steps(member.parent)))
            candidates[text] = TaskProgram(
                self.task.workload_key, text, mutation=member.move, parent_id=parent, predicted=member.score
            )
            # Copies: a view would keep the arrays of the whole generation alive.
            if member.key in features:
                located[text] = replace(member, row=member.row.copy(), parent=None), features[member.key]
        self.observed.propose(located)
        return tuple(candidates.values())

    def _features_of(self, keys: Collection[int]) -> dict[int, Features]:
        """Features (S, F) of programs that this round scored, by key. Discards the other features of the round."""
        features_by_key: dict[int, Features] = {}
        for scored, features in self._scored:
            for index in np.flatnonzero(np.isin(scored, np.fromiter(keys, dtype=np.uint64, count=len(keys)))):
                features_by_key[int(scored[index])] = features[index].copy()
        self._scored = []
        return features_by_key
