"""A process that kills what a session leaves running, however the session ended.

Prefect's embedded server is its own process, which would outlive a session that is killed with -9. So a session
starts this program, which waits until the session is gone and then kills every process that has the session's mark in
its environment.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil

from retune.compiler.core import config

# Four checks a second cost nothing, and the next command finds no server of the last command.
_POLL_SECONDS = 0.25


def start_reaper(mark: str, folder: Path | None) -> "subprocess.Popen[bytes]":
    """Watch over this process, whose children carry `mark` and use `folder`. Ctrl-C does not reach the reaper."""
    return subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "retune.flows.server.reaper",
            str(os.getpid()),
            mark,
            *([str(folder)] if folder else []),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # In a session of its own: the signal that ends the terminal's processes must not end the reaper first.
        start_new_session=True,
    )


def kill_marked(mark: str) -> None:
    """Kill every process but this that carries `mark`."""
    killed = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            # By the mark in the environment, which children inherit: process groups would miss those that made a
            # session.
            if process.pid != os.getpid() and process.environ().get(config.SESSION) == mark:
                process.kill()
                killed.append(process)
    psutil.wait_procs(killed, timeout=5)


def main(owner: int, mark: str, *folders: str) -> None:
    """Wait until the owner, the parent of this process, is gone; then clean up after it."""
    # An orphan gets another parent, so this also sees kill -9; process ids may be reused, parents not.
    while os.getppid() == owner:
        time.sleep(_POLL_SECONDS)
    kill_marked(mark)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
