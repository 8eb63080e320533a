"""Threads of parallel regions on CPUs of their own: which they are, and what is left to the user."""

import os
import subprocess
import sys

import pytest

from retune.compiler.runtime.thread_places import shares_of

_SETUP = """
import os, threading, time
import numpy as np
from retune.compiler.runtime import thread_places
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.runtime.sequence import KernelSequence
from tests.support.ir_kernels import ELEMENTS, artifact

a, b = aligned_array((ELEMENTS,), "float32"), aligned_array((ELEMENTS,), "float32")
loaded = load_kernels([artifact("cpus of threads", "noting"), artifact("code 7", "failing")])
noting, failing = (loaded[name].bind([a, b], threads=2) for name in ("noting", "failing"))
run = KernelSequence([noting, noting])
allowed = os.sched_getaffinity(0)

def others():
    me = threading.get_native_id()
    return [os.sched_getaffinity(int(one)) for one in os.listdir("/proc/self/task") if int(one) != me]

def moved_to(cpu):
    os.sched_setaffinity(0, {cpu})
    os.sched_setaffinity(0, allowed)
"""

_several = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")


def _python(text: str, **environment: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", _SETUP + text],
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("count", "threads", "shares"),
    [
        (2, 2, [(0,), (1,)]),
        (5, 2, [(0, 1), (2, 3, 4)]),
        (4, 4, [(0,), (1,), (2,), (3,)]),
        (2, 3, [(0, 1), (0, 1), (0, 1)]),
    ],
)
def test_every_thread_has_a_share_of_the_cpus(count: int, threads: int, shares: list[tuple[int, ...]]) -> None:
    assert shares_of(range(count), threads) == shares


@_several
def test_the_threads_of_a_region_run_on_different_cpus_wherever_the_caller_was() -> None:
    _python("""
for cpu in sorted(allowed) * 3:
    moved_to(cpu)
    run()
    assert b[0] != b[1], (cpu, b[:2])
    assert os.sched_getaffinity(0) == allowed
mine = thread_places.shares_of(thread_places.order_by_core(allowed), 2)
assert sum(one in map(set, mine) for one in others()) == 1, others()
""")


@_several
def test_the_caller_is_free_again_after_a_kernel_that_fails() -> None:
    _python("""
run()
broken = KernelSequence([noting, failing])
for cpu in sorted(allowed):
    moved_to(cpu)
    try:
        broken()
    except Exception as error:
        assert "failing failed with code 7" in str(error)
    else:
        raise AssertionError("nothing was raised")
    assert os.sched_getaffinity(0) == allowed
""")


@_several
def test_a_caller_that_its_user_binds_stays_there() -> None:
    _python("""
run()
for cpu in sorted(allowed):
    os.sched_setaffinity(0, {cpu})
    run()
    assert b[0] == cpu
    assert os.sched_getaffinity(0) == {cpu}
""")


@_several
@pytest.mark.parametrize("variable", ["OMP_PROC_BIND", "OMP_PLACES"])
def test_what_the_environment_says_of_places_wins(variable: str) -> None:
    value = {"OMP_PROC_BIND": "false", "OMP_PLACES": "{0:1}"}[variable]
    _python(
        """
assert not thread_places.decides()
thread_places.place_threads = None
run()
""",
        **{variable: value},
    )


def test_more_threads_than_cpus_are_bound_to_none() -> None:
    _python("""
os.sched_setaffinity(0, {min(allowed)})
run()
assert b[0] == b[1] == min(allowed)
thread_places.place_threads(10_000)
assert os.sched_getaffinity(0) == {min(allowed)}
""")


@_several
def test_threads_are_bound_in_a_forked_child_and_again_in_its_parent() -> None:
    _python("""
run()
child = os.fork()
run()
assert b[0] != b[1]
if not child:
    os._exit(0 if len(os.listdir("/proc/self/task")) == 2 and os.sched_getaffinity(0) == allowed else 1)
assert os.waitpid(child, 0)[1] == 0
""")


@_several
def test_each_calling_thread_has_its_own_threads_bound() -> None:
    _python("""
found = []

def call():
    run()
    found.append(tuple(b[:2]))

run()
for _ in range(4):
    one = threading.Thread(target=call)
    one.start()
    one.join()
assert all(first != second for first, second in found), found
""")
