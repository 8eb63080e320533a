"""In: how thoroughly to measure. Out: one frozen class of options and its text form for records. Always:
checked when made.
"""

import json
from dataclasses import asdict, dataclass

from compiler.errors import OptionError


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How candidates are built and timed.

    A repeat makes passes of `number` calls, growing `number` until a pass lasts `min_repeat_ms`. A candidate
    whose first repeat is slower than `give_up_factor` times the best known program of its task gets no
    further repeat. `check` compares every candidate's outputs with those of the untuned program on the same
    random inputs, made from `seed`; `tolerance_factor` scales how far they may differ. `flush_bytes` of other
    memory are written before each pass.
    """

    threads: int = 1
    build_timeout_s: float = 15.0
    run_timeout_s: float = 10.0
    number: int = 1
    repeat: int = 3
    min_repeat_ms: float = 3.0
    cooldown_ms: float = 0.0
    flush_bytes: int = 0
    check: bool = True
    tolerance_factor: float = 1.0
    give_up_factor: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("threads", 1), ("number", 1), ("repeat", 1), ("give_up_factor", 1)):
            if getattr(self, name) < least:
                raise OptionError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("build_timeout_s", "run_timeout_s", "tolerance_factor"):
            if getattr(self, name) <= 0:
                raise OptionError(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("min_repeat_ms", "cooldown_ms", "flush_bytes", "seed"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name} must not be negative, not {getattr(self, name)}")

    def to_json(self) -> str:
        """The options as JSON text, keys sorted: equal options give equal texts."""
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
