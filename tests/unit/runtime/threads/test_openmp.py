"""The OpenMP runtime: its settings, and processes that fork."""

import os
import subprocess
import sys

import pytest

from retune.compiler.core.config import SPIN_COUNT

_SPIN = """
import os
{before}
from retune.compiler.runtime.threads.openmp import openmp_runtime
openmp_runtime()
assert os.environ.get("GOMP_SPINCOUNT") == {after!r}, os.environ.get("GOMP_SPINCOUNT")
"""
_SHOW = {"OMP_DISPLAY_ENV": "verbose"}
"""Has libgomp write what it read from the environment to stderr when it is loaded."""

_FORK = """
import multiprocessing, os, signal
import numpy as np
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.loader import load_kernels
from tests.support.ir_kernels import ELEMENTS, artifact

a, b = aligned_array((ELEMENTS,), "float32"), aligned_array((ELEMENTS,), "float32")
a.fill(1)
run = load_kernels([artifact("parallel")])["kernel"].bind([a, b], threads=2)

def computes():
    b.fill(0)
    run()
    return bool(np.all(b == 2))

assert computes()
for _ in range(3):
    child = os.fork()
    if not child:
        signal.alarm(30)  # libgomp waits forever for threads that the child does not have
        right = computes()
        os._exit(0 if right and len(os.listdir("/proc/self/task")) == 2 else 1)
    assert computes()
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
"""


def _python(text: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, "-c", text]
    return subprocess.run(
        command, env=inherited | environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize(
    ("set_by_user", "expected"),
    [({}, SPIN_COUNT), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "passive"}, "0")],
)
def test_threads_spin_briefly_unless_the_user_decides(set_by_user: dict[str, str], expected: str) -> None:
    text = _SPIN.format(before="", after=set_by_user.get("GOMP_SPINCOUNT"))
    done = _python(text, set_by_user | _SHOW)
    assert done.returncode == 0, done.stderr
    assert f"GOMP_SPINCOUNT = '{expected}'" in done.stderr


def test_a_runtime_that_is_loaded_already_is_shared() -> None:
    before = "import ctypes; other = ctypes.CDLL('libgomp.so.1')"
    after = "theirs = ctypes.cast(other.GOMP_parallel, ctypes.c_void_p).value\n"
    after += "assert openmp_runtime().symbols['GOMP_parallel'] == theirs"
    done = _python(_SPIN.format(before=before, after=None) + after, {})
    assert done.returncode == 0, done.stderr


def test_parent_and_forked_child_both_run_threads() -> None:
    done = _python(_FORK, {})
    assert done.returncode == 0, done.stderr
