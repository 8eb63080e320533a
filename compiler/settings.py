"""In: defaults, a file, an environment, flags. Out: typed settings, and where each value comes from.

Always: pure; the later of these four wins, setting by setting. A setting is a field of `Settings`: adding one there
makes it known in the file, in the environment and to `retune config`.
"""

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from retune.compiler.errors import OptionError

FILE = "retune.toml"
"""The name of the file, looked for in the working directory."""

FILE_VARIABLE = "RETUNE_CONFIG"
"""The environment variable that names another file."""

OTHER_VARIABLES = (FILE_VARIABLE, "RETUNE_SESSION", "RETUNE_PLACES", "RETUNE_ROOT", "RETUNE_API_AUTH")
"""Variables of ours that are no settings: they belong to processes that are started, not to a person's wishes."""

KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"}

_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
"""How a variable says yes or no, in letters of any case; the file has TOML's own true and false."""

Value = str | int | float | Path | None


def _about(
    meaning: str, *, variables: tuple[str, ...] = (), least: float | None = None, flag: str = ""
) -> dict[str, Any]:
    """What is known of a setting: what it means, the environment variables that set it (default: RETUNE_ and the
    field's name; the first that is set counts), the least number that makes sense, the flag if it has another name.
    """
    return {"meaning": meaning, "variables": variables, "least": least, "flag": flag}


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a person can set once instead of saying it with every command."""

    home: Path = field(
        default=Path(".retune"),
        metadata=_about("state folder: records, runs, results, Prefect's database", flag="store"),
    )
    trials: int | None = field(
        default=None,
        metadata=_about("programs to measure in a run; 1000 when there is no limit in minutes either", least=1),
    )
    minutes: float | None = field(default=None, metadata=_about("minutes to tune for; no such limit when unset"))
    threads: int | None = field(
        default=None, metadata=_about("threads that a network is tuned for; all cores when unset", least=1)
    )
    target: str | None = field(
        default=None, metadata=_about("target text, such as 'llvm -mcpu=znver4'; this machine when unset")
    )
    seed: int = field(default=0, metadata=_about("seed of the search", least=0))
    batch: int = field(default=64, metadata=_about("most programs measured in one round", least=1))
    early_stopping: int = field(
        default=0,
        metadata=_about("end after so many trials that did not shorten the estimated latency; 0: never", least=0),
    )
    weights: str = field(
        default="auto",
        metadata=_about("weights while a kernel is timed: cached, memory, or auto, which is as in the network"),
    )
    winograd: bool = field(
        default=True,
        metadata=_about("whether Winograd's transforms are tried for 3x3 convolutions of stride 1"),
    )
    num_threads: int | None = field(
        default=None,
        metadata=_about(
            "threads that a compiled network runs on; those it was compiled for when unset",
            variables=("RETUNE_NUM_THREADS", "OMP_NUM_THREADS"),
            least=1,
        ),
    )
    fleet: str | None = field(
        default=None,
        metadata=_about("workers that build and time: folder, prefect, dask, ray; this machine when unset"),
    )
    fleet_storage: str | None = field(
        default=None,
        metadata=_about("folder or URL that a fleet's runs and workers share; fleet/ in the state folder when unset"),
    )
    device: str | None = field(
        default=None, metadata=_about("key of the fleet's device that programs are timed on; cpu when unset")
    )
    prefect_api: str | None = field(
        default=None,
        metadata=_about(
            "address of a Prefect server; runs use an embedded one when unset", variables=("PREFECT_API_URL",)
        ),
    )
    prefect_wait: float = field(
        default=60.0,
        metadata=_about("seconds that a run waits for a Prefect server at an address that does not answer", least=0),
    )


@dataclass(frozen=True, slots=True)
class Origin:
    """One setting as it stands: its value, where that comes from, what it means, and how to set it."""

    name: str
    value: Value
    source: str
    meaning: str
    variable: str


def resolve(
    environment: Mapping[str, str], folder: Path, flags: Mapping[str, Value] | None = None
) -> tuple[Settings, tuple[Origin, ...]]:
    """The settings of a process in `folder`, and the origin of each; a flag that is None was not given.

    Raises: OptionError for a file that cannot be read, a key that is no setting, a value that makes no sense.
    """
    plain = Settings()
    values: dict[str, Value] = asdict(replace(plain, home=folder / plain.home))
    sources = dict.fromkeys(values, "default")
    for layer, places in (
        _of_file(environment, folder),
        _of_environment(environment, folder),
        _of_flags(flags or {}, folder),
    ):
        values.update(layer)
        sources.update(places)
    origins = tuple(
        Origin(one.name, values[one.name], sources[one.name], one.metadata["meaning"], variables_of(one.name)[0])
        for one in fields(Settings)
    )
    return Settings(**values), origins  # type: ignore[arg-type] # every value was checked against its field's type


def variables_of(name: str) -> tuple[str, ...]:
    """The environment variables of a setting, the strongest first."""
    found: tuple[str, ...] = _field(name).metadata["variables"]
    return found or (f"RETUNE_{name.upper()}",)


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that begin like ours and set nothing, with the name that was probably meant."""
    known = [*OTHER_VARIABLES, *(variable for one in fields(Settings) for variable in variables_of(one.name))]
    strange = [name for name in sorted(environment) if name.startswith("RETUNE_") and name not in known]
    return {name: nearest(name, known) for name in strange}


def nearest(word: str, known: Iterable[str]) -> str:
    """The one of `known` that looks most like `word`."""
    names = sorted(known)
    return max(names, key=lambda name: difflib.SequenceMatcher(None, word.lower(), name.lower()).ratio())


def _of_file(environment: Mapping[str, str], folder: Path) -> tuple[dict[str, Value], dict[str, str]]:
    named = environment.get(FILE_VARIABLE)
    path = folder / (named or FILE)
    if not named and not path.is_file():
        return {}, {}
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise OptionError(f"cannot read the settings in {path}: {reason}") from error
    except ValueError as error:  # TOML's own, or Python's limit on digits
        raise OptionError(f"{path} is not TOML: {error}") from error
    except RecursionError:
        raise OptionError(f"{path} is no file of settings: it is nested too deep") from None
    known = [one.name for one in fields(Settings)]
    for key in read:
        if key not in known:
            raise OptionError(
                f"{path}: there is no setting {key!r}; the nearest is {nearest(key, known)!r}, "
                "and `retune config` lists all"
            )
    values = {key: _checked(key, value, path.parent, f"{path}: {key}") for key, value in read.items()}
    return values, dict.fromkeys(read, str(path))


def _of_environment(environment: Mapping[str, str], folder: Path) -> tuple[dict[str, Value], dict[str, str]]:
    values: dict[str, Value] = {}
    sources: dict[str, str] = {}
    for one in fields(Settings):
        for variable in variables_of(one.name):
            text = environment.get(variable, "").strip()
            if one.name == "num_threads":
                text = _threads(text)
            if text:
                values[one.name] = _checked(one.name, _read(text, _kind(one.name)), folder, variable)
                sources[one.name] = variable
                break
    return values, sources


def _of_flags(flags: Mapping[str, Value], folder: Path) -> tuple[dict[str, Value], dict[str, str]]:
    given = {name: value for name, value in flags.items() if value is not None}
    places = {name: f"flag --{_field(name).metadata['flag'] or name.replace('_', '-')}" for name in given}
    return {name: _checked(name, value, folder, places[name]) for name, value in given.items()}, places


def _threads(text: str) -> str:
    """The first number of a list, as OpenMP reads it; empty for what OpenMP ignores."""
    first = text.partition(",")[0].strip()
    return first if first.isdecimal() and first.strip("0") else ""


def _read(text: str, kind: type[Any]) -> Value:
    """What a variable says where a value of this kind is wanted; the text itself, to be complained about, where it says
    nothing of the kind.
    """
    if kind is bool:
        return _TRUTH.get(text.lower(), text)
    return _number(text) if kind in (int, float) else text


def _number(text: str) -> Value:
    """A number if it is one, else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _checked(name: str, value: Any, folder: Path, place: str) -> Value:
    """The value, of its field's type; `place` says where it stands. A relative path is relative to `folder`."""
    kind = _kind(name)
    least: float | None = _field(name).metadata["least"]
    if isinstance(value, int) and value.bit_length() > 63:  # Python refuses to write or convert the longest
        raise OptionError(f"{place} must be a smaller number")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is Path and isinstance(value, str) and "://" in value:
        raise OptionError(f"{place} must be a folder of this machine, not {value}: give that URL as --store")
    if kind is Path and isinstance(value, str) and value:
        return Path(folder / value).absolute()
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise OptionError(f"{place} must be {KINDS[kind]}, not {value!r}")
    if isinstance(value, int | float) and (not math.isfinite(value) or (least is not None and value < least)):
        raise OptionError(f"{place} must be {f'at least {least:g}' if least is not None else 'finite'}, not {value}")
    return value  # type: ignore[no-any-return] # its type was looked at


@cache
def _field(name: str) -> Field[Any]:
    (found,) = (one for one in fields(Settings) if one.name == name)
    return found


@cache
def _kind(name: str) -> type[Any]:
    """The type of a field, without the None that stands for unset."""
    hint = get_type_hints(Settings)[name]
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    found: type[Any] = kinds[0]
    return found
