"""Runs `retune tune` for a program: its own process, whose events become a progress bar."""

import json
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from retune.compiler import config
from retune.compiler.errors import MeasureError
from retune.compiler.runtime.readable import milliseconds
from retune.notebook import LiveTable, kernel_shell

# More than the 8 s in which the command itself tells a server at an address that the run is over.
GRACE_SECONDS = 20.0
"""How long a tuning process may take to end after Ctrl-C before it is killed."""

Show = Callable[[Mapping[str, Any]], None]


def run_tuning(source: str, flags: Sequence[str], *, progress: bool) -> dict[str, Any]:
    """Tune a network as the command does and return its report, the fields of report.json.

    Prefect reads its settings from the environment when it is imported, and its server and worker processes must end
    with the run: so this is its own process. Ctrl-C ends it; finished rounds are kept.
    Raises: MeasureError with the command's own sentence when it fails.
    """
    # -P: a file such as numpy.py in the working directory must not take a module's place.
    command = [sys.executable, "-P", "-m", "retune.flows.launch", "retune.flows.cli", "tune", source, "--json", *flags]
    report: dict[str, Any] | None = None
    said: list[str] = []
    with _started(command) as child, _shown(progress) as show:
        # stderr has its own reader: a child blocks as soon as the pipe that nobody reads is full, 64 KiB on Linux.
        complaints = threading.Thread(target=lambda: said.extend(child.stderr or ()), daemon=True)
        complaints.start()
        for line in child.stdout or ():
            event = _event(line)
            if event.get("event") == "report":
                report = event
            show(event)
        code = child.wait()
        complaints.join()
    if report is None:
        sentences = [line.removeprefix("retune: ").strip() for line in said if line.startswith("retune: ")]
        sentence = sentences[-1] if sentences else " ".join("".join(said).split())[-500:]
        raise MeasureError(sentence or f"tuning {source} ended with code {code} and without a word")
    return report


@contextmanager
def _started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """The process, which ends with the block: by itself, or interrupted when the block is left by an exception."""
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=config.child_environment({}),
    )  # fmt: skip
    try:
        yield child
    except BaseException:
        # As Ctrl-C: the command then keeps what is measured, and ends its server and its workers.
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_SECONDS)
        raise
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()


def _event(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


@contextmanager
def _shown(progress: bool) -> Iterator[Show]:
    """A table in a notebook, a progress bar in a terminal; nothing where the output goes elsewhere."""
    if progress and kernel_shell() is not None:
        yield LiveTable().show
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not progress or not console.is_terminal:
        yield lambda _event: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=False) as bar:
        task = bar.add_task("starting", total=1.0, done="")
        limits: dict[str, float | None] = {"trials": None, "seconds": None}

        def show(event: Mapping[str, Any]) -> None:
            match event.get("event"):
                case "phase_started":
                    bar.update(task, description=str(event.get("text", ""))[:60])
                case "run_opened":
                    limits.update(trials=event.get("trials_limit"), seconds=event.get("seconds_limit"))
                case "round_done":
                    bar.update(task, completed=_share(event, limits), done=_done(event), description="tuning")

        yield show
        bar.update(task, completed=1.0, description="tuned")


def _share(event: Mapping[str, Any], limits: Mapping[str, float | None]) -> float:
    """How much of the budget is spent: the larger of the shares of its limits."""
    spent = {"trials": event.get("trials") or 0, "seconds": event.get("elapsed") or 0.0}
    return max((min(1.0, spent[name] / limit) for name, limit in limits.items() if limit), default=0.0)


def _done(event: Mapping[str, Any]) -> str:
    latency = event.get("latency")
    known = isinstance(latency, float) and math.isfinite(latency) and event.get("latency_is_complete")
    return f"{event.get('trials')} trials" + (f", {milliseconds(float(latency or 0.0))} ms" if known else "")
