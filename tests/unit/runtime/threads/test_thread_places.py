"""Threads of parallel regions on CPUs of their own: which they are, and what is left to the user."""

import os
import subprocess
import sys

import pytest

from retune.compiler.runtime.threads.thread_places import shares_of

_SETUP = """
import os, threading, time
import numpy as np
from retune.compiler.runtime.threads import thread_places
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.runtime.sequence import KernelSequence
from tests.support.ir_kernels import ELEMENTS, artifact

a, b = aligned_array((ELEMENTS,), "float32"), aligned_array((ELEMENTS,), "float32")
loaded = load_kernels([artifact("cpus of threads", "noting"), artifact("code 7", "failing")])
noting, failing = (loaded[name].bind([a, b], threads=2) for name in ("noting", "failing"))
allowed = os.sched_getaffinity(0)

def others():
    me = threading.get_native_id()
    return [os.sched_getaffinity(int(one)) for one in os.listdir("/proc/self/task") if int(one) != me]

def moved_to(cpu):
    os.sched_setaffinity(0, {cpu})
    os.sched_setaffinity(0, allowed)
"""

_RUN = "run = KernelSequence([noting, noting])\n"

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
    ("cores", "threads", "shares"),
    [
        ([[0], [1]], 2, [(0,), (1,)]),
        ([[0], [1], [2], [3], [4]], 2, [(0, 1), (2, 3, 4)]),
        ([[0, 4], [1, 5], [2, 6], [3, 7]], 2, [(0, 4, 1, 5), (2, 6, 3, 7)]),
        ([[0, 4], [1, 5], [2, 6], [3, 7]], 3, [(0, 4), (1, 5), (2, 6, 3, 7)]),
        ([[0, 2], [1, 3]], 4, [(0,), (2,), (1,), (3,)]),
        ([[0], [1]], 3, [(0, 1), (0, 1), (0, 1)]),
    ],
)
def test_every_thread_has_a_share_of_the_cores(
    cores: list[list[int]], threads: int, shares: list[tuple[int, ...]]
) -> None:
    assert shares_of(cores, threads) == shares


@_several
def test_the_threads_of_a_region_run_on_different_cpus_wherever_the_caller_was() -> None:
    _python(
        _RUN
        + """
for cpu in sorted(allowed) * 3:
    found = []
    for _ in range(20):  # on a busy machine the caller, which is free, may be moved while a kernel runs
        moved_to(cpu)
        run()
        found.append(tuple(b[:2]))
        assert os.sched_getaffinity(0) == allowed
    assert any(first != second for first, second in found), (cpu, found)
mine = thread_places.shares_of(thread_places.cores_of(allowed), 2)
assert sum(one in map(set, mine) for one in others()) == 1, others()
"""
    )


@_several
def test_the_caller_is_free_again_after_a_kernel_that_fails() -> None:
    _python(
        _RUN
        + """
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
"""
    )


@_several
def test_a_caller_that_its_user_binds_stays_there() -> None:
    _python(
        _RUN
        + """
run()
for cpu in sorted(allowed):
    os.sched_setaffinity(0, {cpu})
    run()
    assert b[0] == cpu
    assert os.sched_getaffinity(0) == {cpu}
"""
    )


@_several
@pytest.mark.parametrize("variable", ["OMP_PROC_BIND", "OMP_PLACES"])
def test_what_the_environment_says_of_places_wins(variable: str) -> None:
    value = {"OMP_PROC_BIND": "false", "OMP_PLACES": "{0:1}"}[variable]
    _python(
        _RUN
        + """
assert not thread_places.binds_threads()
thread_places.place_threads = None
run()
""",
        **{variable: value},
    )


@_several
@pytest.mark.parametrize(
    ("environment", "is_bound"),
    [
        ({"OMP_WAIT_POLICY": " Passive"}, False),
        ({"GOMP_SPINCOUNT": "0"}, False),
        ({"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "100"}, True),
        ({"OMP_WAIT_POLICY": "active"}, True),
    ],
)
def test_threads_that_sleep_at_once_are_not_bound(environment: dict[str, str], is_bound: bool) -> None:
    """Whatever wakes them may run them on any idle CPU."""
    _python(_RUN + f"run()\nassert any(one != allowed for one in others()) is {is_bound}, others()", **environment)


def test_more_threads_than_cpus_are_bound_to_none() -> None:
    _python(
        _RUN
        + """
os.sched_setaffinity(0, {min(allowed)})
run()
assert b[0] == b[1] == min(allowed)
thread_places.place_threads(10_000)
assert os.sched_getaffinity(0) == {min(allowed)}
"""
    )


@_several
def test_threads_are_bound_in_a_forked_child_and_again_in_its_parent() -> None:
    _python(
        _RUN
        + """
run()
child = os.fork()
run()
mine = thread_places.shares_of(thread_places.cores_of(allowed), 2)
assert sum(one in map(set, mine) for one in others()) == 1, others()
if not child:
    os._exit(0 if len(os.listdir("/proc/self/task")) == 2 and os.sched_getaffinity(0) == allowed else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    )


@_several
def test_threads_that_a_run_creates_do_not_inherit_the_callers_share() -> None:
    _python(
        _RUN
        + """
from retune.compiler.runtime.threads.openmp import openmp_runtime
import ctypes
run()
for cpu in sorted(allowed):
    ctypes.CDLL(openmp_runtime().path).omp_pause_resource_all(1)
    moved_to(cpu)
    run()
    assert allowed in others(), others()
"""
    )


def test_placements_that_others_change_again_and_again_do_not_stop_a_run() -> None:
    _python(
        _RUN
        + """
tries = []
thread_places.decides = lambda: True
thread_places.place_threads = tries.append
KernelSequence([noting])()
assert tries == [2, 2, 2]
"""
    )


def test_threads_that_make_their_first_calls_at_once_all_run() -> None:
    _python("""
failed = []

def call():
    one, other = aligned_array((ELEMENTS,), "float32"), aligned_array((ELEMENTS,), "float32")
    sequence = KernelSequence([loaded["noting"].bind([one, other], threads=2)])
    ready.wait()
    try:
        for _ in range(20):
            sequence()
    except Exception as error:
        failed.append(error)

for _ in range(5):
    ready = threading.Barrier(4)
    callers = [threading.Thread(target=call) for _ in range(4)]
    [one.start() for one in callers]
    [one.join() for one in callers]
assert not failed, failed
""")


@_several
def test_kernels_without_parallel_loops_start_and_bind_no_threads() -> None:
    _python("""
serial = load_kernels([artifact("good", "serial")])["serial"].bind([a, b], threads=2)
before = len(os.listdir("/proc/self/task"))
for cpu in sorted(allowed):
    moved_to(cpu)
    KernelSequence([serial, serial])()
assert len(os.listdir("/proc/self/task")) == before
""")


@_several
def test_each_calling_thread_has_its_own_threads_bound() -> None:
    _python(
        _RUN
        + """
both, counted = threading.Barrier(3), threading.Event()

def call():
    run()
    both.wait()
    counted.wait()

callers = [threading.Thread(target=call) for _ in range(2)]
[one.start() for one in callers]
both.wait()
shares = [set(one) for one in thread_places.shares_of(thread_places.cores_of(allowed), 2)]
bound = sum(one in shares for one in others())
counted.set()
[one.join() for one in callers]
assert bound == 2, bound
"""
    )
