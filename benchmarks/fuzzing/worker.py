"""Worker process of the fuzzer: loads a range of inputs and counts outcomes in shared memory.

An input is a function of the case, the seed and its number, and is written to a file before it is loaded, so it
survives whatever it does to this process. Memory is bounded: an input that asks for more than `MEMORY_BYTES` gets a
MemoryError.
"""

import contextlib
import logging
import resource
import time
import traceback
from collections.abc import MutableSequence, Sequence
from pathlib import Path
from random import Random

from benchmarks.fuzzing import artifacts, executables, models, records, rehearsal
from benchmarks.fuzzing.case import FuzzCase

_ALL = (*artifacts.CASES, *executables.CASES, *records.CASES, *models.CASES, rehearsal.CASE)
CASES = {case.name: case for case in _ALL}

MEMORY_BYTES = 2 << 30
"""How much more address space than before the first input a process may take."""

NEXT, LOADED, REFUSED, OTHER, SLOWEST, GROWN = range(6)
"""What the numbers of the shared memory are: the input at work, three counts, microseconds of CPU time of the
slowest input, and by how many KiB the memory of the process grew.
"""


def input_of(case: FuzzCase, samples: Sequence[bytes], seed: int, number: int) -> bytes:
    """Input `number` of a case."""
    return case.make(samples, Random(f"{case.name} {seed} {number}"))


def samples_of(case: FuzzCase, folder: Path) -> list[bytes]:
    """The valid files of a case, kept in a folder from one process to the next."""
    kept = folder / f"{case.name}.samples"
    if not kept.is_dir():
        kept.mkdir()
        for number, sample in enumerate(case.samples()):
            (kept / f"{number:03d}").write_bytes(sample)
    return [file.read_bytes() for file in sorted(kept.iterdir())]


def work(name: str, seed: int, stop: int, folder: Path, counts: MutableSequence[int]) -> None:
    """Load the inputs from number `counts[NEXT]` to `stop`; what ends in another way is kept in `folder`."""
    logging.disable(logging.CRITICAL)
    case = CASES[name]
    samples = samples_of(case, folder)
    case.load(_written(folder, case, samples[0], -1))  # a library that is loaded must not be written over
    _bound_memory()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while counts[NEXT] < stop:
        number = counts[NEXT]
        path = _written(folder, case, input_of(case, samples, seed, number), number)
        began = time.process_time()
        try:
            case.load(path)
        except case.refusals:
            counts[REFUSED] += 1
        except BaseException:  # whatever it is, it is counted and kept
            counts[OTHER] += 1
            _keep(folder, case, path, number, traceback.format_exc())
        else:
            counts[LOADED] += 1
        counts[SLOWEST] = max(counts[SLOWEST], int((time.process_time() - began) * 1e6))
        path.unlink()
        counts[NEXT] = number + 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    counts[GROWN] = max(counts[GROWN], grown)


def current(folder: Path, case: FuzzCase, number: int) -> Path:
    """Where the input at work lies; each has its own name, as a library stays mapped."""
    return folder / f"{case.name}-{number}{case.suffix}"


def _written(folder: Path, case: FuzzCase, data: bytes, number: int) -> Path:
    path = current(folder, case, number)
    path.write_bytes(data)
    return path


def _keep(folder: Path, case: FuzzCase, path: Path, number: int, what: str) -> None:
    failures = folder / "failures"
    failures.mkdir(exist_ok=True)
    (failures / path.name).write_bytes(path.read_bytes())
    (failures / f"{case.name}-{number}.txt").write_text(what, encoding="utf-8")


def _bound_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError), Path("/proc/self/statm").open() as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, now + MEMORY_BYTES))
