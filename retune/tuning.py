"""Runs `retune tune` for a program, as its own process, which shows its progress itself."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

from retune.compiler.core import config
from retune.compiler.core.errors import MeasureError
from retune.notebook import kernel_shell

# More than the 8 s in which the command itself tells a server at an address that the run is over.
GRACE_SECONDS = 20.0
"""How long a tuning process may take to end after Ctrl-C before it is killed."""

_DONE = 0, 1
"""Exit codes of a run that came to its end, with right outputs or wrong."""


def run_tuning(source: str, flags: Sequence[str], *, progress: bool) -> None:
    """Tune a network as the command does. With `progress` its live table is on the terminal of stderr, or its lines are
    in the notebook; elsewhere nothing is shown.

    This is its own process, since in the caller's

    - Prefect, once imported, keeps the settings of that moment, those of files in the working directory among them;
    - the mark by which the reaper kills what a run leaves would be inherited by all children that the caller starts;
    - Ctrl-C, or a Prefect server that stays away, ends the process at once, while threads wait in native code.

    Ctrl-C ends it; finished rounds are kept.
    Raises: MeasureError with the command's own sentence when it fails.
    """
    in_notebook = progress and kernel_shell() is not None
    on_terminal = progress and not in_notebook and sys.stderr.isatty()
    quiet = [] if in_notebook or on_terminal else ["--quiet"]
    # -P: a file such as numpy.py in the working directory must not take a module's place.
    command = [
        sys.executable,
        "-P",
        "-m",
        "retune.flows.cli.launch",
        "retune.flows.cli.app",
        "tune",
        source,
        *quiet,
        *flags,
    ]
    said: list[str] = []
    with _start(command, sys.stderr if on_terminal else subprocess.PIPE) as child:
        # stderr has its own reader: a child blocks as soon as the pipe that nobody reads is full, 64 KiB on Linux.
        complaints = threading.Thread(target=lambda: said.extend(child.stderr or ()), daemon=True)
        complaints.start()
        for line in child.stdout or ():
            print(line, end="")
        code = child.wait()
        complaints.join()
    if code not in _DONE:
        sentences = [line.removeprefix("retune: ").strip() for line in said if line.startswith("retune: ")]
        sentence = sentences[-1] if sentences else " ".join("".join(said).split())[-500:]
        raise MeasureError(sentence or f"tuning {source} ended with code {code} and without a word")


@contextmanager
def _start(command: Sequence[str], stdout: TextIO | int) -> Iterator[subprocess.Popen[str]]:
    """The process, which ends with the block: by itself, or interrupted when the block is left by an exception."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=config.child_environment({}),
    )
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
