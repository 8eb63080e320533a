"""In: the process environment. Out: a frozen `Config`, and environments for child processes.

Always: nothing else in Retune reads `os.environ`.
"""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

SESSION = "RETUNE_SESSION"
"""The variable that marks a session of `retune tune` and every process that it starts."""


@dataclass(frozen=True, slots=True)
class Config:
    """The settings that are read from the environment, once.

    `home` (RETUNE_HOME) is the state folder: records, run ledger, artifacts and Prefect's database. `session`
    (RETUNE_SESSION) is the mark of the session that this process belongs to, empty outside of one.
    """

    home: Path = Path(".retune")
    session: str = ""


def load(environment: Mapping[str, str] | None = None) -> Config:
    """Read the settings from `environment`, by default that of this process."""
    given = os.environ if environment is None else environment
    return Config(
        home=Path(given.get("RETUNE_HOME") or ".retune").absolute(),
        session=given.get(SESSION, ""),
    )


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with the entries of `extra` put over it."""
    return {**os.environ, **extra}


def prefect_environment(home: Path) -> dict[str, str]:
    """What Prefect must find in the environment *before* it is imported, so that its embedded API keeps to `home` and
    calls nobody.

    Settings that the user has made win, and with PREFECT_API_URL set the user's own server and profile are left as
    they are.
    """
    quiet = {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    }
    embedded = {
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_PROFILES_PATH": str(home / "prefect" / "profiles.toml"),
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
        # Nobody reacts to events or reads them back here, and the processor is needed for timing.
        "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
        "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    }
    wanted = quiet if "PREFECT_API_URL" in os.environ else {**quiet, **embedded}
    return {name: value for name, value in wanted.items() if name not in os.environ}


def usable_cores() -> int:
    """How many cores this process may run on."""
    return len(usable_processors())


def usable_processors() -> tuple[int, ...]:
    """The numbers of the processors this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def thread_count(default: int, environment: Mapping[str, str] | None = None) -> int:
    """How many threads a network runs on: what RETUNE_NUM_THREADS or OMP_NUM_THREADS says, else `default`.

    A value that is not a whole number from 1 on is ignored, as OpenMP ignores it; of a list the first number counts.
    """
    given = os.environ if environment is None else environment
    for name in ("RETUNE_NUM_THREADS", "OMP_NUM_THREADS"):
        first = given.get(name, "").partition(",")[0].strip()
        if first.isdecimal() and int(first) >= 1:
            return int(first)
    return default


def device_name() -> str:
    """The identity of this machine's processor, as records carry it: the same text means that times may be compared."""
    fields = _first_processor()
    name = fields.get("model name") or platform.processor() or platform.machine()
    kind = [f"{key.removeprefix('cpu ')} {fields[key]}" for key in ("cpu family", "model", "stepping") if key in fields]
    return ", ".join([name, *([" ".join(kind)] if kind else []), f"{os.cpu_count()} cores"])


def _first_processor() -> dict[str, str]:
    """What Linux says of processor 0, by field; empty elsewhere."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8").partition("\n\n")[0] if cpuinfo.exists() else ""
    lines = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def engine_version() -> str:
    """The version of Retune that runs, as records carry it."""
    return _version("retune")


def llvm_version() -> str:
    """The version of the package that brings LLVM, as records carry it."""
    return f"llvmlite {_version('llvmlite')}"


@cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "0+source"
