"""In: valid files, and functions that spoil and load them. Out: a `FuzzCase`, what is known of one loader.

Always: the same source of random numbers gives the same input.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.fuzzing.mutations import Mutate, mutated_bytes, spliced

Make = Callable[[Sequence[bytes], Random], bytes]


@dataclass(frozen=True, slots=True)
class FuzzCase:
    """A loader. `samples` makes valid files, `make` an input of them, and `load` reads the file at a path; what is
    wrong with that must be one of `refusals`. `suffix` is the ending of the file's name. One process takes `together`
    inputs: few where what is loaded stays in it.
    """

    name: str
    samples: Callable[[], list[bytes]]
    make: Make
    load: Callable[[Path], object]
    refusals: tuple[type[Exception], ...]
    suffix: str = ".bin"
    together: int = 50_000


def drawn(*mutates: Mutate) -> Make:
    """Inputs that are a sample changed in one of these ways, or one with bytes turned, or the halves of two samples."""

    def make(samples: Sequence[bytes], draw: Random) -> bytes:
        sample = draw.choice(samples)
        kind = draw.random()
        if kind < 0.05:
            return spliced(sample, draw.choice(samples), draw)
        return mutated_bytes(sample, draw) if kind < 0.3 else draw.choice(mutates)(sample, draw)

    return make
