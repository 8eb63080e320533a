"""`retune tune` in its own process, and what it leaves."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from retune.compiler.core import config
from retune.compiler.measure.record import MeasureRecord
from retune.storage.parquet import ParquetRecordStore

TRIALS = 24
_STATE_FOLDER = "TESTED_STATE_FOLDER"


PATIENCE_SECONDS = 240.0


def command(network: Path, home: Path, more: Sequence[str] = ()) -> list[str]:
    options = ["--trials", str(TRIALS), "--threads", "1", "--store", str(home), *more]
    return [
        sys.executable,
        "-P",
        "-m",
        "retune.flows.cli.launch",
        "retune.flows.cli.app",
        "tune",
        str(network),
        *options,
    ]


def environment_on(home: Path, **extra: str) -> dict[str, str]:
    """The environment of a run on the embedded API, and in it what tells the processes of the run."""
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    environment = config.child_environment({"PYTHONPATH": paths, _STATE_FOLDER: str(home), **extra})
    ours = ("PREFECT_HOME", "PREFECT_PROFILES_PATH", "PREFECT_API_URL")
    return {name: value for name, value in environment.items() if name in extra or name not in ours}


@contextmanager
def started(
    network: Path, home: Path, log: Path, api: str | None, more: Sequence[str] = ()
) -> Iterator["subprocess.Popen[bytes]"]:
    """The command, with `more` options, in its own process; on the Prefect server `api`, or else an embedded one."""
    environment = environment_on(home, **({"PREFECT_API_URL": api} if api else {}))
    with log.open("ab") as stream:
        process = subprocess.Popen(command(network, home, more), stdout=stream, stderr=stream, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def stored(home: Path) -> list[MeasureRecord]:
    return ParquetRecordStore(home).records()


def rounds(home: Path) -> int:
    return len({(record.run_id, record.round) for record in stored(home)})


def kill_when(
    network: Path, home: Path, log: Path, api: str | None, wanted: int, delay: float, more: Sequence[str] = ()
) -> set[str]:
    """Start the command, kill it `delay` seconds after `wanted` rounds are stored, and return what was stored by
    then.
    """
    with started(network, home, log, api, more) as process:
        limit = time.monotonic() + PATIENCE_SECONDS
        while rounds(home) < wanted and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.05)
        time.sleep(delay)
        before = {record.record_id for record in stored(home)}
        assert process.poll() is None, f"the run ended before it was killed:\n{log.read_text()}"
        process.send_signal(signal.SIGKILL)
        process.wait()
    return before


def has_session(process: "subprocess.Popen[bytes]") -> bool:
    """Whether a run has come so far that it has started the embedded server."""
    try:
        return any("uvicorn" in " ".join(child.cmdline()) for child in psutil.Process(process.pid).children())
    except psutil.Error:
        return False


def processes_of(home: Path) -> list[str]:
    """The command lines of all processes of a run in `home` that has `environment_on`, but for those that clean up."""
    found = []
    for process in run_processes(home):
        with suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return [line for line in found if "retune.flows.server.reaper" not in line]


def run_processes(home: Path) -> Iterator[psutil.Process]:
    """All processes of a run in `home` that has `environment_on`."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_STATE_FOLDER) == str(home):
                yield process
