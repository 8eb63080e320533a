"""Settings from retune.toml, the process environment and flags, and environments for child processes.

No other module of Retune reads `os.environ`.
"""

import math
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from retune.compiler.core.settings import ResolvedSetting, Settings, Value, resolve, unknown_variables

SESSION = "RETUNE_SESSION"
"""The variable that marks a session of `retune tune` and every process that it starts."""

_PLACES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
GOMP_SPIN_COUNT = "GOMP_SPINCOUNT"
SPIN_COUNT = "1000"
"""Iterations that a thread of libgomp spins before it sleeps: some 25 µs on AMD, 50 µs on Intel, longer than the
threads of a tuned kernel wait for each other on a quiet machine. libgomp's default, 300,000, keeps a core busy for 8 ms
and more at the end of every kernel whose other thread was preempted.
"""


def load(environment: Mapping[str, str] | None = None, flags: Mapping[str, Value] | None = None) -> Settings:
    """The settings of this process: defaults, then retune.toml, then `environment` (by default that of this process),
    then `flags`; a flag that is None counts as missing.

    Raises: OptionError for an invalid file or value.
    """
    return resolve(os.environ if environment is None else environment, Path.cwd(), flags)[0]


def explain(
    environment: Mapping[str, str] | None = None, flags: Mapping[str, Value] | None = None
) -> tuple[ResolvedSetting, ...]:
    """Every setting as `load` has it, with its source. Raises: OptionError."""
    return resolve(os.environ if environment is None else environment, Path.cwd(), flags)[1]


@cache
def debug_level() -> int:
    """The value of RETUNE_DEBUG, a level of `retune.compiler.ir.trace`; read once in a process. Raises: OptionError."""
    return load().debug


@cache
def checks_ir() -> bool:
    """Whether every kernel is verified after every pass; read once in a process. Raises: OptionError."""
    return load().check


def strange_variables() -> dict[str, str]:
    """Variables of this process that look like settings and are none, with the nearest name."""
    return unknown_variables(os.environ)


def session() -> str:
    """The session of `retune tune` that this process belongs to; empty outside of a session."""
    return os.environ.get(SESSION, "")


def set_environment(extra: Mapping[str, str]) -> None:
    """Set variables of this process, for libraries that read them when they are imported, and for its children."""
    os.environ.update(extra)


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, overridden by the entries of `extra`."""
    return {**os.environ, **extra}


@contextmanager
def bound_spinning() -> Iterator[None]:
    """While the body loads libgomp, make its waiting threads sleep soon, unless the user's environment decides."""
    # libgomp reads these once, in its constructor. Both set the same count, so either is the user's decision.
    user_decides = {GOMP_SPIN_COUNT, "OMP_WAIT_POLICY"} & os.environ.keys()
    if not user_decides:
        os.environ[GOMP_SPIN_COUNT] = SPIN_COUNT
    try:
        yield
    finally:
        if not user_decides:
            # libgomp has read it; children must wait as the user's environment says.
            del os.environ[GOMP_SPIN_COUNT]


def user_places_threads() -> bool:
    """Whether the user's environment binds the threads of an OpenMP runtime to CPUs."""
    return any(name in os.environ for name in _PLACES)


def threads_sleep_at_once() -> bool:
    """Whether the user's environment keeps libgomp's threads from spinning; a spin count takes precedence."""
    count = os.environ.get(GOMP_SPIN_COUNT)
    passive = os.environ.get("OMP_WAIT_POLICY", "").strip().lower() == "passive"
    return passive if count is None else count.strip() == "0"


def prefect_environment(folder: Path | None = None) -> dict[str, str]:
    """The variables that Prefect needs *before* it is imported, so that its embedded API uses `folder` and sends no
    telemetry.

    Variables that the user has set win, and with a user's server (PREFECT_API_URL, or `prefect_api` in retune.toml)
    that server and the user's profile stay as they are.
    """
    settings = load()
    server = settings.prefect_api
    state_folder = None if server or not folder else folder / "prefect"
    home = os.environ.get("PREFECT_HOME") or state_folder or Path("~/.prefect").expanduser()
    quiet = {
        # Prefect's default, which can name code: without it Prefect asks files of the working directory.
        "PREFECT_PROFILES_PATH": f"{home}/profiles.toml",
        # The workers of a local Dask cluster are begun by `python -c`, which would import from the working directory.
        "PYTHONSAFEPATH": "1",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",  # such a server has no login
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_INTERNAL_LOGGING_LEVEL": "CRITICAL",  # of an unreachable server Retune says more, in one line
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    }
    embedded = {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
        # Logs and events are never read back here, and the CPU is needed for timing.
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
        "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
        # A transaction for each of the three states of each task run would be 22 ms of CPU a task run, not 7.
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "2",
        # Prefect's default is 20 s. On a machine at a load of 20 the server takes more than 120 s.
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "240",
    }
    # A client asks again after 2, 4, 8, ... s. It must not give up before the run does.
    remote = {
        "PREFECT_API_URL": server or "",
        # n tries bridge 2 + 4 + ... + 2^n = 2^(n+1) - 2 s; 5 are Prefect's default.
        "PREFECT_CLIENT_MAX_RETRIES": str(max(5, math.ceil(math.log2(settings.prefect_wait + 2)))),
    }
    variables = {**quiet, **(remote if server else embedded)}
    return {name: value for name, value in variables.items() if name not in os.environ}


def prefect_database() -> Path | None:
    """The database file of a Prefect server of this process; None where the user has named another database."""
    home = os.environ.get("PREFECT_HOME")
    is_named = any(name.startswith(("PREFECT_API_DATABASE", "PREFECT_SERVER_DATABASE")) for name in os.environ)
    return None if is_named or not home else Path(home) / "prefect.db"


def cache_folder() -> Path | None:
    """The folder of files that can be made again; None for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retune"
    except RuntimeError:
        return None


def usable_cores() -> int:
    """The number of cores this process may keep busy: those of its affinity mask, but no more than its quota."""
    # Threads beyond a quota make each run slower: the kernel stops all of them when the quota of a period is used up.
    return max(1, min(len(usable_cpus()), int(cpu_quota() or sys.maxsize)))


def cpu_quota(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> float | None:
    """CPUs that the control groups of this process may use at a time; None for no limit.

    `groups` names the process's group in each hierarchy; quotas of the groups above it apply too.
    """
    quotas = []
    for line in _words(groups, "\n"):
        _, _, tail = line.partition(":")
        controllers, _, path = tail.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "cpu" if controllers else root  # version 1, and 2
        group = mount / path.lstrip("/")
        # A container sees its own group as the mount, whatever path the host has for it.
        for folder in (group, *group.parents) if ".." not in group.parts else (mount,):
            if folder.is_relative_to(mount):
                limits = _words(folder / "cpu.max")
                limits = limits or [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
                # "max" or -1 is no limit; both numbers are in microseconds.
                numbers = [int(word) for word in limits if word.isdecimal()]
                quotas += [numbers[0] / numbers[1]] if len(numbers) == 2 and numbers[1] else []
    return min(quotas, default=None)


def _words(path: Path, separator: str | None = None) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").split(separator)
    except OSError:
        return []


def usable_cpus() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


def thread_count(default: int, environment: Mapping[str, str] | None = None) -> int:
    """The number of threads a network runs on: RETUNE_NUM_THREADS, OMP_NUM_THREADS or `num_threads` in retune.toml,
    else `default`.

    A variable that is not a positive integer is ignored, as OpenMP ignores it; of a list the first number counts.
    Raises: OptionError for an invalid retune.toml.
    """
    return load(environment).num_threads or default


def host_name() -> str:
    return platform.node() or "this machine"


def device_name() -> str:
    """The identity of this machine's CPU in records: times of machines with the same text may be compared."""
    fields = _first_cpu()
    # A marketing name alone is not enough: clouds sell several steppings, and slices of several sizes, under one name.
    name = fields.get("model name") or platform.processor() or platform.machine()
    kind = [f"{key.removeprefix('cpu ')} {fields[key]}" for key in ("cpu family", "model", "stepping") if key in fields]
    return ", ".join([name, *([" ".join(kind)] if kind else []), f"{os.cpu_count()} cores"])


def _first_cpu() -> dict[str, str]:
    """Linux's fields of CPU 0; empty elsewhere."""
    cpuinfo = Path("/proc/cpuinfo")
    # One paragraph a CPU: the first is enough, and the file has hundreds on a large server.
    text = cpuinfo.read_text(encoding="utf-8").partition("\n\n")[0] if cpuinfo.exists() else ""
    lines = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def engine_version() -> str:
    """The version of Retune, as records keep it."""
    return package_version("retune-compiler")


def llvm_version() -> str:
    """The version of the package with LLVM, as records keep it."""
    return f"llvmlite {package_version('llvmlite')}"


@cache
def package_version(package: str) -> str:
    """The version of an installed package; for Retune in a folder that is not installed, a text that says so."""
    from importlib import metadata  # takes longer to import than the rest of the runtime

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "0+source"
