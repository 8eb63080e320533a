"""The programs of a task that were measured: their features, the best of them, and the weight of the analytical model.

A program counts once, with its latest observation. Steps that do not fit the task are only remembered.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite

import numpy as np

from retune.compiler.measure.record import TaskProgram
from retune.compiler.schedule.steps import load_steps
from retune.compiler.search import mutation
from retune.compiler.search.evolution import Individual
from retune.compiler.search.genome import Rows, keys_of
from retune.compiler.search.program_features import Features, TaskFeatures, rank_correlation
from retune.compiler.search.space import SketchSpace

_JUDGED = 256
"""The number of latest results that judge the analytical model."""


Located = tuple[Individual | None, Features | None]
"""A program's individual, None outside of all spaces, and its features (S, F), None if its steps do not fit."""


class ObservedPrograms:
    """Measurements of a search. `seconds` are the times by steps text, inf for a failure; `keys` the programs that a
    space contains. The analytical model weighs as much as `trust` results, less where its predictions were poor.
    """

    def __init__(self, spaces: Sequence[SketchSpace], features: TaskFeatures, trust: float) -> None:
        self.seconds: dict[str, float] = {}
        self.keys: set[int] = set()
        self._spaces = spaces
        self._features = features
        self._trust = trust
        self._individuals: dict[str, Individual] = {}
        self._proposed: dict[str, Located] = {}
        self._expected: dict[str, Located] = {}

    def expect(self, programs: Iterable[str]) -> None:
        """Extract the features of programs that later rounds observe: one batch is faster than many.

        Raises: ScheduleError when a steps text cannot be read at all.
        """
        self._expected |= self._locate([*dict.fromkeys(text for text in programs if text not in self._expected)])

    def propose(self, programs: Mapping[str, Located]) -> None:
        """Remember individuals and features of this round's programs for `observe`; forget the last round's."""
        self._proposed = dict(programs)

    def observe(self, results: Sequence[TaskProgram]) -> list[Features | None]:
        """Remember every result; return the features (S, F) of each, None where the steps do not fit the task.

        Raises: ScheduleError when a steps text cannot be read at all.
        """
        texts = [result.steps for result in results]
        located = {text: entry for text in texts if (entry := self._proposed.get(text)) is not None}
        located |= {text: self._expected.pop(text) for text in texts if text in self._expected}
        located |= self._locate([text for text in dict.fromkeys(texts) if text not in located])
        for result in results:
            text = result.steps
            self.seconds[text] = result.seconds if result.seconds > 0.0 else inf
            individual, features = located[text]
            if individual is not None and features is not None:
                self.keys.add(individual.key)
                prior = float(self._features.prior(features[None])[0])
                self._individuals[text] = replace(individual, score=prior)
        return [located[text][1] for text in texts]

    @property
    def best_seconds(self) -> float:
        """The fastest time, inf before any."""
        return min(self.seconds.values(), default=inf)

    def best(self, count: int) -> list[Individual]:
        """At most `count` programs of the spaces that ran, the fastest first, with the analytical model's scores."""
        # The text breaks ties, so that the order does not depend on the order in which results arrived.
        order = sorted(self._valid(), key=lambda text: (self.seconds[text], text))
        return [self._individuals[text] for text in order[:count]]

    @property
    def uncertainty(self) -> float:
        """Uncertainty about the task: 1 before its first result, decreasing with every result."""
        return self._against_results(self._trust)

    @property
    def prior_weight(self) -> float:
        """Weight of the analytical model against the learned model: 1 before the task's first result, decreasing with
        every result, faster the poorer its predictions were.
        """
        if not self._trust:
            return 0.0
        valid = self._valid()[-_JUDGED:]
        priors = np.array([self._individuals[text].score for text in valid])
        seconds = np.array([self.seconds[text] for text in valid])
        # Rank correlation and not error: a search only needs the right order, and the scale of the prior may be off.
        return self._against_results(self._trust * rank_correlation(priors, seconds))

    def _against_results(self, trust: float) -> float:
        """`trust` as a share of `trust` plus the number of results."""
        # A Bayesian weight: the prior counts as `trust` pseudo-observations against the number of real observations.
        return trust / (trust + len(self._individuals)) if trust else 0.0

    def _valid(self) -> list[str]:
        return [text for text in self._individuals if isfinite(self.seconds[text])]

    def _locate(self, texts: Sequence[str]) -> dict[str, Located]:
        """Find programs in the spaces and extract their features, batched by placement."""
        programs: dict[str, Located] = {}
        rows: list[list[tuple[str, Rows]]] = [[] for _ in self._spaces]
        for text in texts:
            steps = load_steps(text)
            for number, space in enumerate(self._spaces):
                row = space.row_of(steps)
                if row is not None:
                    rows[number].append((text, row))
                    break
            else:
                programs[text] = None, self._features.of_steps(steps)
        for number, members in enumerate(rows):
            space = self._spaces[number]
            for indices, group in space.groups(np.stack([row for _, row in members])) if members else ():
                keys = keys_of(number, group.rows)
                for entry, key, row, block in zip(
                    indices, keys, group.rows, self._features.of_group(group), strict=True
                ):
                    individual = Individual(number, row, int(key), 0.0, None, mutation.MEASURED)
                    programs[members[int(entry)][0]] = individual, block
        return programs
