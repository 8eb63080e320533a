"""The options of a tuning run. Each one is described once, as a field of `TuneOptions`.

A field makes a parameter of the flows, an option of `retune tune`, a line of retune.toml and an environment variable.
Its metadata, an `About`, hold what people read about it and the values it may have.
"""

import math
from collections.abc import Iterable
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Self, get_args, get_type_hints

from retune.compiler.errors import OptionError

KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string", Path: "a path"}

BUDGET, SEARCH, NETWORK, MACHINE, FLEET = "budget", "search", "network", "machine", "fleet"
"""Groups of options: when to stop, how to search, how to compute and time a network, where it will run, and on which
workers. A flow takes the groups that mean something for it.
"""


@dataclass(frozen=True, slots=True)
class About:
    """What is known of an option or a setting."""

    meaning: str
    """What it means, in words for people."""
    group: str = ""
    """The group it belongs to, such as `BUDGET`; empty for a setting that is no option of a run."""
    least: float | None = None
    """The least number it may be."""
    most: float | None = None
    """The greatest number it may be."""
    above: float | None = None
    """A bound that a number must exceed, where there is no least one."""
    choices: tuple[str, ...] = ()
    """The texts it may be; none: any."""
    setting: str = ""
    """Its name in retune.toml, if that is not the field's."""
    flag: str = ""
    """Its name on the command line, if that is not the field's."""
    variables: tuple[str, ...] = ()
    """Its environment variables, of which the first that is set counts; none: RETUNE_ and the setting's name."""

    @property
    def range(self) -> str:
        """The numbers that are allowed, in words."""
        if self.most is not None and self.least is not None:
            return f"between {self.least:g} and {self.most:g}"
        if self.above is not None:
            return f"more than {self.above:g}"
        return "finite" if self.least is None else f"at least {self.least:g}"

    def allows(self, number: float) -> bool:
        """Whether a number lies in the range."""
        return (
            math.isfinite(number)
            and (self.least is None or number >= self.least)
            and (self.most is None or number <= self.most)
            and (self.above is None or number > self.above)
        )


def option(default: Any, meaning: str, group: str = "", **about: Any) -> Any:
    """A field of a class of options; `about` as for `About`."""
    return field(default=default, metadata={"about": About(meaning, group, **about)})


def about(one: Field[Any]) -> About:
    """What is known of a field."""
    found: About = one.metadata["about"]
    return found


def flag_of(one: Field[Any]) -> str:
    """The name of a field on the command line, without dashes in front."""
    return about(one).flag or one.name.replace("_", "-")


def kinds_of(owner: type[Any]) -> dict[str, type[Any]]:
    """The type of every field of a class, without the None that stands for unset."""
    hints = get_type_hints(owner).items()
    return {name: next(kind for kind in get_args(hint) or (hint,) if kind is not type(None)) for name, hint in hints}


def check_value(one: Field[Any], kind: type[Any], value: Any, where: str) -> Any:
    """The value as its field's type; `where` says in an error what the value belongs to.

    Raises: OptionError.
    """
    known = about(one)
    if isinstance(value, int) and value.bit_length() > 63:  # Python refuses to write or convert the longest
        raise OptionError(f"{where} must be a smaller number")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    # In Python a bool is an int: True must not pass as 1 trial, nor 1 as yes.
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise OptionError(f"{where} must be {KINDS[kind]}, not {value!r}")
    if isinstance(value, int | float) and not known.allows(value):
        raise OptionError(f"{where} must be {known.range if math.isfinite(value) else 'finite'}, not {value}")
    if known.choices and value not in known.choices:
        raise OptionError(f"{where} must be one of {', '.join(known.choices)}, not {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """How the task scheduler gives the rounds of a run to its tasks, see `retune.compiler.search.task_scheduler`."""

    strategy: str = option(
        "gradient", "how rounds are given to tasks: gradient, or round-robin", SEARCH,
        choices=("gradient", "round-robin"),
    )  # fmt: skip
    # alpha, beta and the window are the defaults of TVM's task scheduler.
    alpha: float = option(
        0.2, "share of the recent progress of a task in its gradient; the rest is optimism", SEARCH, least=0, most=1
    )
    beta: float = option(
        2.0, "how many times slower than the fastest similar task a task is expected to stay at worst", SEARCH, least=1
    )
    backward_window: int = option(3, "rounds that the gradient looks back", SEARCH, least=1, most=1000)
    explore: float = option(0.0, "probability of a round for a task drawn at random", SEARCH, least=0, most=1)
    objective: str = option(
        "latency",
        "what rounds make small: latency, the weighted sum of the kernels' times; geomean, their geometric mean; or "
        "throughput, the latency on as few threads as let several instances of the network do most in a second",
        SEARCH,
        choices=("latency", "geomean", "throughput"),
    )

    def __post_init__(self) -> None:
        """Check every field that is set. Raises: OptionError."""
        kinds = kinds_of(type(self))
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None:
                known = check_value(one, kinds[one.name], value, one.name.replace("_", " "))
                # As frozen dataclasses set fields themselves; an integer given for a float is a float from here on.
                object.__setattr__(self, one.name, known)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(SchedulerOptions):
    """What a person can say of a tuning run besides the network: the parameters of the flows. None is unset."""

    trials: int | None = option(
        None, "programs to measure in a run; 1000 when there is no limit in minutes either", BUDGET, least=1
    )
    minutes: float | None = option(
        None,
        "minutes that the command may take, its report included; half of them at least are for the search",
        BUDGET,
        above=0,
    )
    early_stopping: int = option(
        0, "end after so many trials that did not shorten the estimated latency; 0: never", BUDGET, least=0
    )
    seed: int = option(0, "seed of the search", SEARCH, least=0)
    batch: int = option(64, "most programs measured in one round", SEARCH, least=1, most=1024)
    weights: str = option(
        "auto", "weights while a kernel is timed: cached, memory, or auto, which is as in the network", NETWORK,
        choices=("auto", "cached", "memory"),
    )  # fmt: skip
    winograd: bool = option(True, "whether Winograd's transforms are tried for 3x3 convolutions of stride 1", NETWORK)
    threads: int | None = option(
        None, "threads that a network is tuned for; all cores when unset", MACHINE, least=1, most=4096
    )
    target: str | None = option(None, "target text, such as 'llvm -mcpu=znver4'; this machine when unset", MACHINE)
    fleet: str | None = option(
        None,
        "workers that build and time: dask[://HOST:PORT], prefect; this machine when unset",
        FLEET,
    )
    on_device: str | None = option(
        None, "key of the fleet's device that programs are timed on; cpu when unset", FLEET, setting="device", flag="on"
    )

    @classmethod
    def of(cls, defaults: "TuneOptions", **given: Any) -> Self:
        """Take what is given, and what is None or missing from `defaults`. A limit in trials or minutes takes the place
        of both limits there.

        Raises: OptionError.
        """
        values = {one.name: getattr(defaults, one.name) for one in fields(TuneOptions)}
        if given.get("trials") is not None or given.get("minutes") is not None:
            # Otherwise a limit of retune.toml could end the run before the one that is given here.
            values.update(trials=None, minutes=None)
        return cls(**{**values, **{name: value for name, value in given.items() if value is not None}})


def tune_options(*wanted: str) -> Iterable[Field[Any]]:
    """The fields of `TuneOptions` that are wanted by their name or their group, all without a word, in the order of
    the groups.
    """
    groups = (BUDGET, MACHINE, SEARCH, NETWORK, FLEET)
    found = [one for one in fields(TuneOptions) if not wanted or one.name in wanted or about(one).group in wanted]
    return sorted(found, key=lambda one: groups.index(about(one).group))
