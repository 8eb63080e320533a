"""This machine's CPUs, last-level cache and free memory, read from the kernel's files, with defaults.

It chooses the CPUs that threads run on, and binds a process to them: only CPUs that this process may use are chosen,
and different physical cores come before second threads of one core.
"""

import logging
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_LOG = logging.getLogger(__name__)
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def choose_cpus(threads: int) -> tuple[int, ...]:
    """`threads` CPUs, one per physical core as long as there are enough; empty if there are fewer CPUs."""
    allowed = os.sched_getaffinity(0)
    if threads > len(allowed):
        _LOG.warning("%d threads on %d CPUs: threads are not bound, timings will vary", threads, len(allowed))
        return ()
    cores = cores_of(allowed)
    # Two threads on one core share its ports.
    ordered = [core[rank] for rank in range(max(map(len, cores))) for core in cores if rank < len(core)]
    return tuple(ordered[:threads])


def cores_of(cpus: Iterable[int]) -> list[list[int]]:
    """The CPUs by physical core, in the order of their numbers."""
    cores: dict[str, list[int]] = {}
    for cpu in sorted(cpus):
        # SMT siblings have the same list, so its text identifies the physical core.
        cores.setdefault(_siblings(cpu), []).append(cpu)
    return list(cores.values())


def openmp_environment(cpus: tuple[int, ...]) -> dict[str, str]:
    """Settings that make an OpenMP runtime bind one thread to each of `cpus`; empty for no CPUs.

    A runtime reads them once, at load time, so they belong into the environment of a new process.
    """
    if not cpus:
        return {}
    # One OpenMP place per CPU: within a larger place the kernel could move threads in the middle of a timing.
    place_list = ",".join(f"{{{cpu}}}" for cpu in cpus)
    return {"OMP_PROC_BIND": "true", "OMP_PLACES": place_list, "OMP_NUM_THREADS": str(len(cpus))}


def bind_process(cpus: tuple[int, ...]) -> None:
    """Run this process and its future threads on `cpus` only; no change if empty."""
    if cpus:
        os.sched_setaffinity(0, cpus)


@cache  # a file per CPU, which every calling thread would read
def _siblings(cpu: int) -> str:
    try:
        return Path(_TOPOLOGY.format(cpu)).read_text(encoding="ascii").strip()
    except OSError:
        # Without a topology every CPU counts as a core.
        return str(cpu)


# The third-level cache of a core complex of AMD EPYC; too large only makes flushing slower.
ASSUMED_CACHE_BYTES = 32 << 20
"""The last cache if the system does not describe its caches."""

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_MEMORY = Path("/proc/meminfo")
_UNITS = {"K": 10, "M": 20, "G": 30}


def last_cache_bytes(caches: Path = _CACHES) -> int:
    """Size of the largest cache of CPU 0."""
    sizes = [_bytes(path.read_text(encoding="ascii").strip()) for path in caches.glob("index*/size")]
    # Containers and some virtual machines hide the cache's files.
    return max(sizes, default=ASSUMED_CACHE_BYTES)


def free_memory_bytes(memory: Path = _MEMORY) -> int | None:
    """Memory that new buffers can take without swapping; None if unknown."""
    try:
        lines = memory.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kibibytes = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kibibytes[0]) << 10 if kibibytes else None


def require_memory(nbytes: int, what: str, memory: Path = _MEMORY) -> None:
    """Check that `nbytes` are free before an allocation: the kernel overcommits, and ends processes later.

    Raises: MemoryError that says `what` need them.
    """
    free = free_memory_bytes(memory)
    if free is not None and nbytes > free:
        raise MemoryError(f"{what} need {nbytes / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free")


def _bytes(text: str) -> int:
    """`32768K` in bytes."""
    return int(text[:-1]) << _UNITS[text[-1]] if text[-1:] in _UNITS else int(text or 0)
