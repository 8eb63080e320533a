"""Settings of a user, merged from defaults, a file, the environment and flags.

The later of these four wins, setting by setting. To add a setting, add a field to `Settings` or to its base
`TuneOptions`: the file, the environment and `retune config` then know it.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from retune.compiler.core.errors import OptionError
from retune.compiler.core.options import TuneOptions, check_value, flag_of, info_of, kinds_of, option, tune_options

FILE = "retune.toml"
"""The name of the file, looked for in the working directory."""

FILE_VARIABLE = "RETUNE_CONFIG"
"""The environment variable that names another file."""

OTHER_VARIABLES = (FILE_VARIABLE, "RETUNE_SESSION", "RETUNE_ROOT", "RETUNE_API_AUTH")
"""Variables of Retune that are no settings: they belong to child processes."""

_RUNS_CODE = ("fleet", "fleet_storage", "prefect_api")
"""Settings that a file of the working directory, which may come from elsewhere, must not make."""

_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
"""The words of a variable for yes and no, in letters of any case; the file has TOML's own true and false."""

Value = str | int | float | Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(TuneOptions):
    """Everything that a person can set once, not with every command: the options of a run, and those below."""

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
    """A setting's value, its source, its meaning, and how to set it."""

    name: str
    value: Value
    source: str
    meaning: str
    variable: str


def resolve(
    environment: Mapping[str, str], folder: Path, flags: Mapping[str, Value] | None = None
) -> tuple[Settings, tuple[ResolvedSetting, ...]]:
    """The settings of a process in `folder`, each with its source; a flag that is None counts as missing.

    Raises: OptionError for a file that cannot be read, a key that is no setting, or an invalid value.
    """
    plain = Settings()
    values: dict[str, Value] = {name: getattr(plain, setting.name) for name, setting in _fields().items()}
    # Absolute at once: a run and its children may change their working directory.
    values["home"] = folder / plain.home
    sources = dict.fromkeys(values, "default")
    for layer, layer_sources in (
        _of_file(environment, folder),
        _of_environment(environment, folder),
        _of_flags(flags or {}, folder),
    ):
        values.update(layer)
        sources.update(layer_sources)
    resolved = tuple(
        ResolvedSetting(name, values[name], sources[name], info_of(setting).meaning, variables_of(name)[0])
        for name, setting in _fields().items()
    )
    fields_by_name: dict[str, Any] = {setting.name: values[name] for name, setting in _fields().items()}
    return Settings(**fields_by_name), resolved


def variables_of(name: str) -> tuple[str, ...]:
    """The environment variables of a setting, the strongest first."""
    return info_of(_fields()[name]).variables or (f"RETUNE_{name.upper()}",)


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that begin like Retune's and set nothing, with the nearest name."""
    known = [*OTHER_VARIABLES, *(variable for name in _fields() for variable in variables_of(name))]
    strange = [name for name in sorted(environment) if name.startswith("RETUNE_") and name not in known]
    return {name: nearest(name, known) for name in strange}


def nearest(word: str, known: Iterable[str]) -> str:
    """The name in `known` that is most similar to `word`."""
    names = sorted(known)
    # Ratcliff and Obershelp's similarity, as in Python's own hints; ties go by the alphabet.
    return max(names, key=lambda name: difflib.SequenceMatcher(None, word.lower(), name.lower()).ratio())


def _of_file(environment: Mapping[str, str], folder: Path) -> tuple[dict[str, Value], dict[str, str]]:
    chosen = environment.get(FILE_VARIABLE)
    path = folder / (chosen or FILE)
    # A file that is named must exist; the usual file need not.
    if not chosen and not path.is_file():
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
    names = list(_fields())
    if not chosen and (unsafe := [key for key in read if key in _RUNS_CODE]):
        raise OptionError(
            f"{path} may not set {unsafe[0]}, which decides who can run code here: set {variables_of(unsafe[0])[0]}, "
            f"or {FILE_VARIABLE}={FILE} if you trust the file"
        )
    for key in read:
        # An unknown key is an error, not a warning: a misspelled limit would let a run go on for hours.
        if key not in names:
            raise OptionError(
                f"{path}: there is no setting {key!r}; the nearest is {nearest(key, names)!r}, "
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
                # The first variable that is set counts; if OpenMP would ignore it, the next decides.
                break
    return values, sources


def _of_flags(flags: Mapping[str, Value], folder: Path) -> tuple[dict[str, Value], dict[str, str]]:
    values = {name: value for name, value in flags.items() if value is not None}
    sources = {name: f"flag --{flag_of(_fields()[name])}" for name in values}
    return {name: _check(name, value, folder, sources[name]) for name, value in values.items()}, sources


def _threads(text: str) -> str:
    """The first number of a list, as OpenMP reads it; empty where OpenMP ignores the text."""
    first = text.partition(",")[0].strip()
    # "4,2" is 4 threads at the outermost level of nested parallelism, and kernels have no other.
    return first if first.isdecimal() and first.strip("0") else ""


def _read(text: str, kind: type) -> Value:
    """The value of a variable of type `kind`; the text itself if it has no such value, for the error of `_check`."""
    if kind is bool:
        return _TRUTH.get(text.lower(), text)
    return _number(text) if kind in (int, float) else text


def _number(text: str) -> Value:
    """`text` as a number, or the text itself if it is none."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check(name: str, value: object, folder: Path, where: str) -> Value:
    """The value, of its field's type; `where` names its source. A relative path is relative to `folder`."""
    kind = _kinds()[name]
    if kind is Path and isinstance(value, str) and "://" in value:
        raise OptionError(f"{where} must be a folder of this machine, not {value}: give that URL as --store")
    if kind is Path and isinstance(value, str) and value:
        # Not `resolve`: a state folder behind a symbolic link keeps its name.
        value = Path(folder / value).absolute()
    checked: Value = check_value(_fields()[name], kind, value, where)
    return checked


@cache
def _fields() -> dict[str, Field[object]]:
    """The field of every setting, by name: the options of a run in the command line's order, then the others."""
    options = list(tune_options())
    names = {setting.name for setting in options}
    others = [setting for setting in fields(Settings) if setting.name not in names]
    return {info_of(setting).setting or setting.name: setting for setting in (*options, *others)}


@cache
def _kinds() -> dict[str, type]:
    """The type of every setting, by its name."""
    kinds = kinds_of(Settings)
    return {name: kinds[setting.name] for name, setting in _fields().items()}
