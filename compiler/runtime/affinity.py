"""In: a number of threads. Out: the processors they should run on, and ways to bind a process to them.

Always: only processors this process may use; different physical cores before second threads of one core.
"""

import logging
import os
from pathlib import Path

_LOG = logging.getLogger(__name__)
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def choose_processors(threads: int) -> tuple[int, ...]:
    """`threads` processors, one per physical core as long as there are some; empty when there are fewer processors."""
    allowed = sorted(os.sched_getaffinity(0))
    if threads > len(allowed):
        _LOG.warning("%d threads on %d processors: threads are not bound, timings will vary", threads, len(allowed))
        return ()
    firsts: list[int] = []
    seconds: list[int] = []
    seen: set[str] = set()
    for processor in allowed:
        core = _siblings(processor)
        (seconds if core in seen else firsts).append(processor)
        seen.add(core)
    return tuple((firsts + seconds)[:threads])


def openmp_environment(processors: tuple[int, ...]) -> dict[str, str]:
    """Settings under which an OpenMP runtime binds one thread to each of `processors`; none when that is empty.

    A runtime reads them once, when it is loaded, so they belong into the environment of a new process.
    """
    if not processors:
        return {}
    places = ",".join(f"{{{processor}}}" for processor in processors)
    return {"OMP_PROC_BIND": "true", "OMP_PLACES": places, "OMP_NUM_THREADS": str(len(processors))}


def bind_process(processors: tuple[int, ...]) -> None:
    """Run this process and the threads it will start on `processors` only. Nothing changes when that is empty."""
    if processors:
        os.sched_setaffinity(0, processors)


def _siblings(processor: int) -> str:
    try:
        return Path(_TOPOLOGY.format(processor)).read_text(encoding="ascii").strip()
    except OSError:
        return str(processor)
