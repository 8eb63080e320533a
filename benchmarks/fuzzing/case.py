"""`FuzzCase`: one loader with its sample files, mutations and permitted errors. The same seed gives the same inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.fuzzing.mutations import Mutate, mutated_bytes, spliced

Make = Callable[[Sequence[bytes], Random], bytes]


@dataclass(frozen=True, slots=True)
class FuzzCase:
    """A loader under test.

    `samples` makes valid files, `make` mutates one into an input, and `load` reads the file at a path; its errors must
    be among `refusals`. `suffix` is the extension of the file name. One process takes `together` inputs: few if what is
    loaded stays in memory.
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
