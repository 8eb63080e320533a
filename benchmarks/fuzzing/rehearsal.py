"""A fuzz case that fails in every way, to test the failure counters; the input's contents select the outcome."""

import os
import signal
import time
from pathlib import Path

import numpy as np

from benchmarks.fuzzing.case import FuzzCase

ENDS = (b"loaded", b"refused", b"other", b"greedy", b"dead", b"hung")
_GREEDY_BYTES = 8 << 30


def _load(path: Path) -> object:
    end = path.read_bytes()
    if end == b"refused":
        raise ValueError("this is refused")
    if end == b"other":
        raise LookupError("this is not how to refuse")
    if end == b"greedy":
        return np.ones(_GREEDY_BYTES, np.uint8)
    if end == b"dead":
        os.kill(os.getpid(), signal.SIGSEGV)
    if end == b"hung":
        time.sleep(3600)
    return end


CASE = FuzzCase("rehearsal", lambda: list(ENDS), lambda samples, draw: draw.choice(samples), _load, (ValueError,))
