"""`MeasureOptions`: how thoroughly to measure, and its text form for records.

Options are frozen and checked when made.
"""

import json
import math
from dataclasses import asdict, dataclass
from numbers import Real

from retune.compiler.errors import OptionError

_NUMBERS = (
    "build_timeout_s",
    "run_timeout_s",
    "min_repeat_ms",
    "cooldown_interval",
    "first_look_ms",
    "give_up_factor",
    "max_contention",
    "tolerance_factor",
)


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How candidates are built and timed, on `threads` threads.

    What TVM's `LocalBuilder` and `LocalRunner` call `timeout` is `build_timeout_s` and `run_timeout_s` here, with their
    defaults; both are for one candidate. `cooldown_interval` is a pause in seconds after every repeat.
    `enable_cpu_cache_flush` takes all arguments but the first out of the caches before each repeat, which is one call
    then. Other defaults differ from TVM's (number 3, repeat 1, min_repeat_ms 100) for these reasons:

    * A candidate of half a millisecond would be timed for 100 ms, a round of 64 for six seconds. Other load can only
      make a call slower, so the fastest of `repeat` repeats of `min_repeat_ms` is as steady as the mean of one long
      repeat, at a tenth of its price. `number` is where the search for the number of calls in a repeat begins.
    * Racing: after a look of `first_look_ms`, a program slower than `give_up_factor` times the best of its task gets no
      repeats; its record is marked as censored. The best program is timed as `repeat` says, most others are not.
    * A repeat that loses more than the share `max_contention` to other processes is made again, up to
      `contended_passes` times for a candidate. TVM has no such check.

    * `overlap`: while a program is timed, others are built, on CPUs that the timing does not use; never on those
      that it does use. TVM builds everything first.

    `rotate_bytes` tells how programs are to find the constants of their task (weights): 0 leaves them in the caches
    from one call to the next; otherwise every call finds them in another place of a pool of so many bytes, so that they
    come from memory as they do in a network whose weights exceed the last cache.

    `check` compares every candidate's outputs with those of the default schedule on the same random inputs, made from
    `seed`; `tolerance_factor` scales how far they may differ. TVM does not look at results.
    """

    threads: int = 1
    build_timeout_s: float = 15.0
    run_timeout_s: float = 10.0
    number: int = 1
    repeat: int = 3
    min_repeat_ms: float = 3.0
    cooldown_interval: float = 0.0
    enable_cpu_cache_flush: bool = False
    rotate_bytes: int = 0
    first_look_ms: float = 0.3
    give_up_factor: float = 1.5
    max_contention: float = 0.02
    contended_passes: int = 3
    overlap: bool = True
    check: bool = True
    tolerance_factor: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("threads", "number", "repeat", "seed", "rotate_bytes", "contended_passes"):
            if not isinstance(getattr(self, name), int):
                raise OptionError(f"{name} must be an integer, not {getattr(self, name)!r}")
        for name in _NUMBERS:
            if not isinstance(getattr(self, name), Real) or not math.isfinite(getattr(self, name)):
                raise OptionError(f"{name} must be a finite number, not {getattr(self, name)!r}")
        for name, least in (("threads", 1), ("number", 1), ("repeat", 1), ("give_up_factor", 1)):
            if not getattr(self, name) >= least:
                raise OptionError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("build_timeout_s", "run_timeout_s", "tolerance_factor"):
            if not getattr(self, name) > 0:
                raise OptionError(f"{name} must be positive, not {getattr(self, name)}")
        for name in (
            "min_repeat_ms",
            "cooldown_interval",
            "rotate_bytes",
            "first_look_ms",
            "max_contention",
            "contended_passes",
            "seed",
        ):
            if not getattr(self, name) >= 0:
                raise OptionError(f"{name} must not be negative, not {getattr(self, name)}")

    def to_json(self) -> str:
        """The options as JSON text, keys sorted: equal options give equal strings."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "MeasureOptions":
        """The inverse of `to_json`.

        Raises: OptionError when the text is not of that form.
        """
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise OptionError(f"measure options {text!r} cannot be read: {error}") from None
