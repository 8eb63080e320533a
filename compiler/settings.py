"""Settings: what a person sets once, from defaults, a file, the environment and flags.

The later of these four wins, setting by setting. A setting is a field of `Settings` or of its base `TuneOptions`; that
alone makes it known in the file, in the environment and to `retune config`.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from retune.compiler.errors import OptionError
from retune.compiler.options import TuneOptions, about, check_value, flag_of, kinds_of, option, tune_options

FILE = "retune.toml"
"""The name of the file, looked for in the working directory."""

FILE_VARIABLE = "RETUNE_CONFIG"
"""The environment variable that names another file."""

OTHER_VARIABLES = (FILE_VARIABLE, "RETUNE_SESSION", "RETUNE_ROOT", "RETUNE_API_AUTH")
"""Variables of ours that are no settings: they belong to processes that are started, not to a person's wishes."""

_RUNS_CODE = ("fleet", "fleet_storage", "prefect_api")
"""Settings that a file of the working directory, which may come from elsewhere, does not make."""

_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
"""How a variable says yes or no, in letters of any case; the file has TOML's own true and false."""

Value = str | int | float | Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(TuneOptions):
    """Everything that a person can set once instead of saying it with every command: the options of a tuning run, and
    those below.
    """

    home: Path = option(  # noqa: RUF009 - it makes a field
        Path(".retune"), "state folder: records, runs, results", flag="store"
    )
    num_threads: int | None = option(
        None,
        "threads that a compiled network runs on; those it was compiled for when unset",
        variables=("RETUNE_NUM_THREADS", "OMP_NUM_THREADS"),
        least=1,
    )
    fleet_storage: str | None = option(
        None, "folder that a fleet on Prefect shares; fleet/ in the state folder when unset"
    )
    debug: int = option(
        0,
        "what the compiler prints on stderr: 1 steps and graph passes, 2 loop IR, 3 after every pass, 4 code",
        least=0,
        most=4,
    )
    check: bool = option(False, "verify the IR of every kernel after every pass")
    prefect_api: str | None = option(
        None, "address of a Prefect server; runs use an embedded one when unset", variables=("PREFECT_API_URL",)
    )
    prefect_wait: float = option(
        60.0, "seconds that a run waits for a Prefect server at an address that does not answer", least=0
    )


@dataclass(frozen=True, slots=True)
class ResolvedSetting:
    """One setting as it stands: its value, where that comes from, what it means, and how to set it."""

    name: str
    value: Value
    source: str
    meaning: str
    variable: str


def resolve(
    environment: Mapping[str, str], folder: Path, flags: Mapping[str, Value] | None = None
) -> tuple[Settings, tuple[ResolvedSetting, ...]]:
    """The settings of a process in `folder`, each with its source; a flag that is None was not given.

    Raises: OptionError for a file that cannot be read, a key that is no setting, a value that makes no sense.
    """
    plain = Settings()
    values: dict[str, Value] = {name: getattr(plain, one.name) for name, one in _fields().items()}
    # Absolute at once: a run and its children may change their working directory.
    values["home"] = folder / plain.home
    sources = dict.fromkeys(values, "default")
    for layer, places in (
        _of_file(environment, folder),
        _of_environment(environment, folder),
        _of_flags(flags or {}, folder),
    ):
        values.update(layer)
        sources.update(places)
    found = tuple(
        ResolvedSetting(name, values[name], sources[name], about(one).meaning, variables_of(name)[0])
        for name, one in _fields().items()
    )
    known: dict[str, Any] = {one.name: values[name] for name, one in _fields().items()}
    return Settings(**known), found


def variables_of(name: str) -> tuple[str, ...]:
    """The environment variables of a setting, the strongest first."""
    return about(_fields()[name]).variables or (f"RETUNE_{name.upper()}",)


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that begin like ours and set nothing, with the name that was probably meant."""
    known = [*OTHER_VARIABLES, *(variable for name in _fields() for variable in variables_of(name))]
    strange = [name for name in sorted(environment) if name.startswith("RETUNE_") and name not in known]
    return {name: nearest(name, known) for name in strange}


def nearest(word: str, known: Iterable[str]) -> str:
    """The one of `known` that looks most like `word`."""
    names = sorted(known)
    # Ratcliff and Obershelp's similarity, as in Python's own hints; ties go by the alphabet.
    return max(names, key=lambda name: difflib.SequenceMatcher(None, word.lower(), name.lower()).ratio())


def _of_file(environment: Mapping[str, str], folder: Path) -> tuple[dict[str, Value], dict[str, str]]:
    named = environment.get(FILE_VARIABLE)
    path = folder / (named or FILE)
    # A file that is named must be there; the usual one need not.
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
    known = list(_fields())
    if not named and (unsafe := [key for key in read if key in _RUNS_CODE]):
        raise OptionError(
            f"{path} may not set {unsafe[0]}, which decides who can run code here: set {variables_of(unsafe[0])[0]}, "
            f"or {FILE_VARIABLE}={FILE} if you trust the file"
        )
    for key in read:
        # An unknown key is an error, not a warning: a misspelled limit would let a run go on for hours.
        if key not in known:
            raise OptionError(
                f"{path}: there is no setting {key!r}; the nearest is {nearest(key, known)!r}, "
                "and `retune config` lists all"
            )
    values = {key: _check(key, value, path.parent, f"{path}: {key}") for key, value in read.items()}
    return values, dict.fromkeys(read, str(path))


def _of_environment(environment: Mapping[str, str], folder: Path) -> tuple[dict[str, Value], dict[str, str]]:
    values: dict[str, Value] = {}
    sources: dict[str, str] = {}
    for name in _fields():
        for variable in variables_of(name):
            text = environment.get(variable, "").strip()
            if name == "num_threads":
                text = _threads(text)
            if text:
                values[name] = _check(name, _read(text, _kinds()[name]), folder, variable)
                sources[name] = variable
                # The first variable that is set counts; one that OpenMP would ignore lets the next speak.
                break
    return values, sources


def _of_flags(flags: Mapping[str, Value], folder: Path) -> tuple[dict[str, Value], dict[str, str]]:
    given = {name: value for name, value in flags.items() if value is not None}
    places = {name: f"flag --{flag_of(_fields()[name])}" for name in given}
    return {name: _check(name, value, folder, places[name]) for name, value in given.items()}, places


def _threads(text: str) -> str:
    """The first number of a list, as OpenMP reads it; empty for what OpenMP ignores."""
    first = text.partition(",")[0].strip()
    # "4,2" is 4 threads at the outermost level of nested parallelism, and kernels have no other.
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


def _check(name: str, value: Any, folder: Path, where: str) -> Value:
    """The value, of its field's type; `where` says where it stands. A relative path is relative to `folder`."""
    kind = _kinds()[name]
    if kind is Path and isinstance(value, str) and "://" in value:
        raise OptionError(f"{where} must be a folder of this machine, not {value}: give that URL as --store")
    if kind is Path and isinstance(value, str) and value:
        # Not `resolve`: a state folder behind a symbolic link keeps the name that the person gave it.
        value = Path(folder / value).absolute()
    found: Value = check_value(_fields()[name], kind, value, where)
    return found


@cache
def _fields() -> dict[str, Field[Any]]:
    """The field of every setting, by the setting's name: the options of a run in the order in which a command lists
    them, then the others.
    """
    options = list(tune_options())
    names = {one.name for one in options}
    others = [one for one in fields(Settings) if one.name not in names]
    return {about(one).setting or one.name: one for one in (*options, *others)}


@cache
def _kinds() -> dict[str, type[Any]]:
    """The type of every setting, by the setting's name."""
    kinds = kinds_of(Settings)
    return {name: kinds[one.name] for name, one in _fields().items()}
