"""Processes that write to a store."""

import subprocess
import sys
from pathlib import Path

from tests.support import record_samples as samples

WRITER = (sys.executable, "-m", samples.__name__)


ROOT = Path(__file__).parents[2]


def start_writer(root: Path, name: str, rounds: int) -> "subprocess.Popen[str]":
    """A process that appends rounds of eight records and prints their ids."""
    command = (*WRITER, str(root), name, str(rounds))
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
