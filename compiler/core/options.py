"""The options of a tuning run. Each is described once, as a field of `TuneOptions`.

A field makes a parameter of the flows, an option of `retune tune`, a line of retune.toml and an environment variable.
Its metadata, an `OptionInfo`, hold its description and its allowed values.
"""

import math
from collections.abc import Iterable
from dataclasses import Field, dataclass, field, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self, get_args, get_type_hints

from retune.compiler.core.errors import OptionError

KINDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string", Path: "a path"}

BUDGET, SEARCH, NETWORK, MACHINE, FLEET = "budget", "search", "network", "machine", "fleet"
"""Groups of options: when to stop, how to search, how to compute and time a network, the target machine, and the
workers. A flow takes the groups that apply to it.
"""


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """Description and limits of an option or a setting."""

    meaning: str = ""
    """The meaning, as a phrase; empty where text below the field documents it."""
    group: str = ""
    """The group, such as `BUDGET`; empty for a setting that is no option of a run."""
    least: float | None = None
    """The least number allowed."""
    most: float | None = None
    """The greatest number allowed."""
    above: float | None = None
    """A bound that a number must exceed, in place of `least`."""
    choices: tuple[str, ...] = ()
    """The texts allowed; empty: any."""
    setting: str = ""
    """The name in retune.toml, if it differs from the field's."""
    flag: str = ""
    """The name on the command line, if it differs from the field's."""
    variables: tuple[str, ...] = ()
    """The environment variables, strongest first; empty: RETUNE_ and the setting's name."""

    @property
    def range(self) -> str:
        """The allowed numbers, as a phrase."""
        if self.most is not None and self.least is not None:
            return f"between {self.least:g} and {self.most:g}"
        if self.above is not None:
            return f"more than {self.above:g}"
        return "finite" if self.least is None else f"at least {self.least:g}"

    def allows(self, number: float) -> bool:
        return (
            math.isfinite(number)
            and (self.least is None or number >= self.least)
            and (self.most is None or number <= self.most)
            and (self.above is None or number > self.above)
        )


def option(default: Any, meaning: str = "", group: str = "", **info: Any) -> Any:
    """A field of a class of options; `info` as for `OptionInfo`."""
    return field(default=default, metadata={"info": OptionInfo(meaning, group, **info)})


def info_of(setting: Field[object]) -> OptionInfo:
    info: OptionInfo = setting.metadata["info"]
    return info


def flag_of(setting: Field[object]) -> str:
    """The name of a field on the command line, without leading dashes."""
    return info_of(setting).flag or setting.name.replace("_", "-")


def kinds_of(owner: type) -> dict[str, type]:
    """The type of every field of a class, without the None that means unset."""
    hints = get_type_hints(owner).items()
    return {name: next(kind for kind in get_args(hint) or (hint,) if kind is not type(None)) for name, hint in hints}


def check_value(setting: Field[object], kind: type, value: object, where: str) -> Any:
    """The value as its field's type; `where` names the source of the value in errors.

    Raises: OptionError.
    """
    info = info_of(setting)
    if isinstance(value, int) and value.bit_length() > 63:  # Python refuses to write or convert the longest
        raise OptionError(f"{where} must be a smaller number")
    if not isinstance(value, bool):  # NumPy's numbers too
        if kind is float and isinstance(value, Real):
            value = float(value)
        elif kind is int and isinstance(value, Integral):
            value = int(value)
    # In Python a bool is an int: True must not pass as 1 trial, nor 1 as yes.
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise OptionError(f"{where} must be {KINDS[kind]}, not {value!r}")
    if isinstance(value, int | float) and not info.allows(value):
        raise OptionError(f"{where} must be {info.range if math.isfinite(value) else 'finite'}, not {value}")
    if info.choices and value not in info.choices:
        raise OptionError(f"{where} must be one of {', '.join(info.choices)}, not {value!r}")
    return value


def check_options(options: Any) -> None:
    """Check every field of frozen `options` that is an `option`, and give it its type: an integer for a float becomes a
    float. None is unset, where it is the default.

    Raises: OptionError naming the field, its value and what it may be.
    """
    kinds = kinds_of(type(options))
    for setting in fields(options):
        value = getattr(options, setting.name)
        if "info" in setting.metadata and (value is not None or setting.default is not None):
            # As frozen dataclasses set fields themselves.
            object.__setattr__(options, setting.name, check_value(setting, kinds[setting.name], value, setting.name))


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """How the task scheduler gives the rounds of a run to its tasks, see `retune.compiler.search.task_scheduler`."""

    strategy: str = option(
        "gradient",
        "how rounds are given to tasks: gradient, or round-robin",
        SEARCH,
        choices=("gradient", "round-robin"),
    )
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
        "throughput, the latency at the thread count per instance that serves the most requests a second",
        SEARCH,
        choices=("latency", "geomean", "throughput"),
    )

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions(SchedulerOptions):
    """All options of a tuning run except the network: the parameters of the flows. None is unset."""

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
        "auto",
        "weights while a kernel is timed: cached, memory, or auto, which is as in the network",
        NETWORK,
        choices=("auto", "cached", "memory"),
    )
    winograd: bool = option(True, "whether Winograd's transforms are tried for 3x3 convolutions of stride 1", NETWORK)
    precision: str = option(
        "float32",
        "precision of products and convolutions: float32, bfloat16, int8, or auto, which measures",
        NETWORK,
        choices=("float32", "bfloat16", "int8", "auto"),
    )
    tolerance: float | None = option(
        None,
        "largest error of the outputs with precision auto, as a share; 0.01 when unset",
        NETWORK,
        least=1e-6,
        most=0.5,
    )
    metric: str = option(
        "largest",
        "that error: largest or mean difference, cosine distance, or top1, the share of changed top classes",
        NETWORK,
        choices=("largest", "mean", "cosine", "top1"),
    )
    calibrate: str | None = option(
        None, "samples of the inputs for precisions, a .npz or a folder of them; random inputs when unset", NETWORK
    )
    sample: str | None = option(
        None,
        "shapes with weights that a network of dynamic shapes is tuned for, a JSON file; log-uniform over the "
        "ranges when unset",
        NETWORK,
        flag="shapes",
    )
    threads: int | None = option(
        None, "threads that a network is tuned for; all cores when unset", MACHINE, least=1, most=4096
    )
    target: str | None = option(None, "target text, such as 'llvm -mcpu=znver4'; this machine when unset", MACHINE)
    fleet: str | None = option(
        None, "workers that build and time: dask[://HOST:PORT], prefect; this machine when unset", FLEET
    )
    on_device: str | None = option(
        None, "key of the fleet's device that programs are timed on; cpu when unset", FLEET, setting="device", flag="on"
    )

    @classmethod
    def of(cls, defaults: "TuneOptions", **overrides: Any) -> Self:
        """`overrides`, completed from `defaults` where None or missing. A limit in trials or minutes replaces both
        limits there.

        Raises: OptionError.
        """
        values = {setting.name: getattr(defaults, setting.name) for setting in fields(TuneOptions)}
        if overrides.get("trials") is not None or overrides.get("minutes") is not None:
            # Otherwise a limit of retune.toml could end the run before the limit of this call.
            values.update(trials=None, minutes=None)
        return cls(**{**values, **{name: value for name, value in overrides.items() if value is not None}})


def tune_options(*names: str) -> Iterable[Field[object]]:
    """The fields of `TuneOptions` whose name or group is in `names`, all without names, in the order of the groups."""
    groups = (BUDGET, MACHINE, SEARCH, NETWORK, FLEET)
    chosen = [
        setting
        for setting in fields(TuneOptions)
        if not names or setting.name in names or info_of(setting).group in names
    ]
    return sorted(chosen, key=lambda setting: groups.index(info_of(setting).group))
