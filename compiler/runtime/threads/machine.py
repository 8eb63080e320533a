"""Sizes of this machine's last-level cache and free memory, read from the kernel's files, with defaults."""

from pathlib import Path

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
