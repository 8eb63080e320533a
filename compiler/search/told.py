"""In: programs of a task as steps texts, and the times they took. Out: their features, the best of them, and how far
first principles are to be trusted.

Always: a program counts once, with what was told of it last; steps that do not fit the task are only remembered.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from retune.compiler.schedule.steps import load_steps
from retune.compiler.search.asked import Told
from retune.compiler.search.genome import Rows, keys_of
from retune.compiler.search.looks import KeptLooks, Look
from retune.compiler.search.prior import merit
from retune.compiler.search.scored import Features, TaskFeatures
from retune.compiler.search.space import SketchSpace

_JUDGED = 256
"""By how many results, the latest ones, first principles are judged."""

_KEPT = 2048
"""So many looks, the latest ones, are there for whoever asks for them."""


@dataclass(frozen=True, slots=True)
class Known:
    """A told program that one of the spaces contains, and what first principles say of it."""

    seconds: float
    text: str
    space: int
    row: Rows
    guess: float


class ToldPrograms:
    """What a search was told. `seconds` are the times by steps text, inf of what failed; `keys` the programs that one
    of the spaces contains. First principles count as much as `trust` results, as far as these bear them out.
    """

    def __init__(self, spaces: Sequence[SketchSpace], features: TaskFeatures, trust: float) -> None:
        self.seconds: dict[str, float] = {}
        self.keys: set[int] = set()
        self._spaces = spaces
        self._features = features
        self._trust = trust
        self._known: dict[str, Known] = {}
        self._expected: dict[str, Look] = {}
        self._fresh: dict[str, Look] = {}

    def expect(self, programs: Iterable[str]) -> None:
        """Look at programs that are going to be told: quicker at once than in each round.

        Raises: ScheduleError when a steps text cannot be read at all.
        """
        fresh = dict.fromkeys(text for text in programs if text not in self._expected)
        self._expected |= self._look(list(fresh))

    def recall(self, programs: Iterable[str], kept: KeptLooks) -> None:
        """Take over what an earlier process saw of programs that are going to be told, as far as it still holds."""
        self._expected |= kept.at({text for text in programs if text not in self._expected}, self._spaces)

    def fresh(self) -> dict[str, Look]:
        """What was looked at, by steps text, and not taken over, since this was asked last."""
        found, self._fresh = self._fresh, {}
        return found

    def take(self, results: Sequence[Told]) -> list[Features | None]:
        """Remember every result; features (S, F) of each, None where the steps do not fit the task.

        Raises: ScheduleError when a steps text cannot be read at all.
        """
        texts = [told.steps_text for told in results]
        looks = self._look([text for text in texts if text not in self._expected])
        looks |= {text: self._expected.pop(text) for text in texts if text in self._expected}
        for told in results:
            text = told.steps_text
            self.seconds[text] = told.seconds if told.seconds is not None and told.seconds > 0.0 else inf
            look = looks[text]
            if look.row is not None:
                self.keys.add(look.key)
                guess = 0.0 if look.features is None else float(self._features.guess(look.features[None])[0])
                self._known[text] = Known(self.seconds[text], text, look.space, look.row, guess)
        return [looks[text].features for text in texts]

    @property
    def best_seconds(self) -> float:
        """The fastest time, inf before any."""
        return min(self.seconds.values(), default=inf)

    def best(self, count: int) -> list[Known]:
        """At most `count` programs that ran, the fastest first."""
        return sorted(self._valid(), key=lambda known: (known.seconds, known.text))[:count]

    @property
    def ignorance(self) -> float:
        """How little is known of the task: 1 before any result of it, less with every one."""
        return self._against_results(self._trust)

    @property
    def prior_weight(self) -> float:
        """How much first principles count against the model: all before any result of the task, less with every one,
        and the less the worse they foretold those.
        """
        if not self._trust:
            return 0.0
        valid = self._valid()[-_JUDGED:]
        seconds, guesses = (np.array([getattr(one, name) for one in valid]) for name in ("seconds", "guess"))
        return self._against_results(self._trust * merit(guesses, seconds))

    def _against_results(self, trust: float) -> float:
        """What is worth `trust` results, as a share beside those there are."""
        return trust / (trust + len(self._known)) if trust else 0.0

    def _valid(self) -> list[Known]:
        return [known for known in self._known.values() if isfinite(known.seconds)]

    def _look(self, texts: Sequence[str]) -> dict[str, Look]:
        """Place programs in the spaces and extract their features, of all that are alike at once."""
        looks: dict[str, Look] = {}
        placed: list[list[tuple[str, Rows]]] = [[] for _ in self._spaces]
        for text in texts:
            steps = load_steps(text)
            for number, space in enumerate(self._spaces):
                row = space.row_of(steps)
                if row is not None:
                    placed[number].append((text, row))
                    break
            else:
                looks[text] = Look(self._features.of_steps(steps))
        for number, found in enumerate(placed):
            space = self._spaces[number]
            for which, group in space.groups(np.stack([row for _, row in found])) if found else ():
                keys = keys_of(number, group.rows)
                for entry, key, row, block in zip(which, keys, group.rows, self._features.of_group(group), strict=True):
                    looks[found[int(entry)][0]] = Look(block, number, int(key), row)
        self._fresh |= looks
        for text in list(self._fresh)[: max(0, len(self._fresh) - _KEPT)]:
            del self._fresh[text]
        return looks
