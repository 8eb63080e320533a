"""`MeasureOptions`: how thoroughly to measure, and its text form for records. Options are frozen and validated."""

import json
from dataclasses import asdict, dataclass

from retune.compiler.core.errors import OptionError
from retune.compiler.core.options import check_options, option
from retune.compiler.runtime.threads.affinity import last_cache_bytes


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How candidates are built and timed.

    Some defaults differ from TVM's (number 3, repeat 1, min_repeat_ms 100): a candidate of half a millisecond would be
    timed for 100 ms, a round of 64 for six seconds. Other load only makes a call slower, so the fastest of `repeat`
    repeats of `min_repeat_ms` is as steady as the mean of one long repeat, at a tenth of its price.
    """

    threads: int = option(1, least=1)
    """Threads that a program is timed on."""
    build_timeout_s: float = option(15.0, above=0)
    """Seconds for the build of one candidate: `timeout` of TVM's `LocalBuilder`, with its default."""
    run_timeout_s: float = option(10.0, above=0)
    """Seconds for all runs of one candidate: `timeout` of TVM's `LocalRunner`, with its default."""
    number: int = option(1, least=1)
    """Calls in a repeat, where the search for their number begins."""
    repeat: int = option(3, least=1)
    """Repeats of a program that may be the best; the fastest counts."""
    min_repeat_ms: float = option(3.0, least=0)
    """The least length of a repeat in milliseconds."""
    cooldown_interval: float = option(0.0, least=0)
    """A pause in seconds after every repeat."""
    enable_cpu_cache_flush: bool = False
    """Evict all arguments but the first from the caches before each repeat, which is then one call."""
    rotate_bytes: int = option(0, least=0)
    """The location of a task's constants (weights): 0 leaves them in the caches from call to call; otherwise every call
    uses another copy in a pool of so many bytes, so that they come from memory, as in a network whose weights exceed
    the last cache.
    """
    first_look_ms: float = option(0.3, least=0)
    """The length in milliseconds of the probe that decides whether a program gets its repeats."""
    give_up_factor: float = option(1.5, least=1)
    """A program slower than this factor times the best of its task gets no repeats; its record is `censored`."""
    max_contention: float = option(0.02, least=0)
    """A repeat that loses more than this share to other processes is repeated. TVM has no such check."""
    contended_passes: int = option(3, least=0)
    """Repeats of a candidate that may be repeated."""
    overlap: bool = True
    """While a program is timed, build others on CPUs that the timing does not use. TVM builds everything first."""
    check: bool = True
    """Compare outputs with those of the default schedule on the same random inputs. TVM does not check results."""
    tolerance_factor: float = option(1.0, above=0)
    """Scales the tolerance of outputs, up to 45%: zeros are never right."""
    seed: int = option(0, least=0)
    """The seed of the random inputs."""

    def __post_init__(self) -> None:
        check_options(self)

    def to_json(self) -> str:
        """The options as JSON text, keys sorted: equal options give equal strings."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "MeasureOptions":
        """The inverse of `to_json`. Raises: OptionError for any other text."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise OptionError(f"measure options {text!r} cannot be read: {error}") from None


def network_options(
    threads: int, constant_bytes: int, weights: str = "auto", cache_bytes: int | None = None
) -> MeasureOptions:
    """Options for the tasks of a network that runs on `threads` threads and has `constant_bytes` of weights.

    While a network runs, the weights of its other kernels pass through the caches between two uses of a kernel's own:
    if all exceed the last cache, every kernel finds its weights in memory. Each timed call then takes its weights from
    another slot of a pool. `weights` is the option of that name. `cache_bytes` is the last cache's size, by default
    this machine's.
    """
    cache = last_cache_bytes() if cache_bytes is None else cache_bytes
    exceed = constant_bytes > cache
    rotate = weights == "memory" or (weights == "auto" and exceed)
    # After twice its size an LRU cache holds nothing of the slot that comes round again.
    pool = min(constant_bytes, 2 * cache) if exceed else 2 * cache
    return MeasureOptions(threads=threads, rotate_bytes=pool if rotate else 0)
