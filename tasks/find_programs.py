"""Chooses the program of every kernel of a network from what the store knows, measuring nothing."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from retune.compiler.core import config
from retune.compiler.core.gpu_facts import capability_of
from retune.compiler.measure.record import MeasureRecord, TaskProgram
from retune.compiler.runtime.cuda.driver_interface import GpuDevice
from retune.compiler.tune.extract import Extracted, ExtractedNetwork
from retune.compiler.vm.subgraph import is_symbolic
from retune.storage.base import speed
from retune.storage.parquet import ParquetRecordStore
from retune.storage.store_url import Location


def find_programs(extracted: ExtractedNetwork, home: Location, gpu: GpuDevice | None) -> dict[str, TaskProgram]:
    """The programs of a network's kernels, by task key, in the records of this machine; their substitutes are the
    fastest first. For a GPU that this machine lacks the records of all machines count.

    The best program is what a run confirmed last: the fastest record of hundreds may be a disturbed timing, or
    its program wrong in a fresh process. A later record that is faster than the confirmation replaces it. Without a
    confirmation, as after an interrupted run, the fastest record is best. Of several tasks that compute the same layer
    a run confirms a single task; the best programs of the others have infinite seconds, so that they are not chosen.
    A program measured before a run confirmed a slower program is no substitute: it may have been found wrong.
    Raises: StoreError.
    """
    store, scope = ParquetRecordStore(home), record_scope(extracted, gpu)
    fastest = store.best_per_task(**scope)
    layers: dict[int, list[str]] = {}
    for task, layer in zip(extracted.tasks, extracted.layers, strict=True):
        if task.workload_key in fastest:
            layers.setdefault(layer, []).append(task.workload_key)
    best: dict[str, TaskProgram] = {}
    for keys in layers.values():
        rows = {key: store.records(task_key=key, confirmations=True, **scope) for key in keys}
        confirmation = _newest(record for key in keys for record in rows[key])
        for key in keys:
            program = _best(rows[key], confirmation, fastest[key])
            best[key] = replace(program, substitutes=_substitutes(rows[key], confirmation))
    return best


def best_programs(home: Location, target: str, threads: int) -> dict[str, TaskProgram]:
    """The fastest measured program of every task on the CPU of this machine, by task key. Raises: StoreError."""
    fastest = ParquetRecordStore(home).best_per_task(target=target, device=config.device_name(), threads=threads)
    return {key: record.program for key, record in fastest.items()}


def symbolic_programs(home: Location, target: str, threads: int) -> dict[str, TaskProgram]:
    """The best program of every task with symbolic extents on the CPU of this machine, by task key: as `find_programs`,
    among the programs that were timed for the shapes of the newest confirmation, else of the newest record.

    Raises: StoreError.
    """
    store, device = ParquetRecordStore(home), config.device_name()
    best: dict[str, TaskProgram] = {}
    for key in store.best_per_task(target, device, threads):
        if not is_symbolic(key):
            continue
        rows = store.records(key, target, device, threads=threads, confirmations=True)
        confirmation = _newest(rows)
        latest = confirmation or [row for row in rows if math.isfinite(row.seconds)][-1]
        sample = {shape.sizes: shape.weight for shape in latest.shapes}
        timed = [row for record in rows if (row := record.over(sample)) is not None]
        best[key] = _best(timed, confirmation, min(timed, key=speed))
    return best


def _newest(records: Iterable[MeasureRecord]) -> MeasureRecord | None:
    """The newest confirmation among the records of the ways to compute one layer."""
    confirmations = (record for record in records if record.is_confirmation)
    return max(confirmations, key=lambda record: (record.timestamp, -record.seconds), default=None)


def _best(rows: Sequence[MeasureRecord], newest: MeasureRecord | None, fastest: MeasureRecord) -> TaskProgram:
    """The best program of a task with the records `rows`; `newest` is the newest confirmation of its layer."""
    if newest is None:
        return fastest.program
    later = [row for row in rows if row.timestamp > newest.timestamp and row.seconds < newest.seconds]
    if later or (newest.task_key == fastest.task_key and math.isfinite(newest.seconds)):
        return min(later, key=speed, default=newest).program
    return replace(fastest.program, seconds=math.inf)


def _substitutes(rows: Sequence[MeasureRecord], newest: MeasureRecord | None) -> tuple[TaskProgram, ...]:
    """The programs of a task with the records `rows` that nothing says are wrong, fastest first."""
    right = [row for row in rows if math.isfinite(row.seconds) and not row.censored and not row.is_confirmation]
    known = [row for row in right if newest is None or row.timestamp > newest.timestamp or row.seconds > newest.seconds]
    return tuple(row.program for row in sorted(known, key=speed))


def threads_of_records(extracted: ExtractedNetwork, home: Location, gpu: GpuDevice | None, keys: set[str]) -> list[int]:
    """The other numbers of threads for which there are records of these tasks on this machine."""
    scope = {**record_scope(extracted, gpu), "threads": None}
    records = (record for key in keys for record in ParquetRecordStore(home).records(task_key=key, **scope))
    return sorted({record.threads for record in records} - {extracted.threads})


def record_scope(extracted: Extracted, gpu: GpuDevice | None) -> dict[str, Any]:
    """Which records count for a network here, as arguments of a store's queries: target, device and threads."""
    device: str | None = config.device_name()
    threads: int | None = extracted.threads
    if not extracted.target.traits.uses_threads:
        # A GPU's records count for any number of CPU threads, and where this machine lacks the GPU those of all
        # machines.
        is_here = gpu is not None and capability_of(gpu.arch) == capability_of(extracted.target.arch)
        device = gpu.identity if gpu is not None and is_here else None
        threads = None
    return {"target": str(extracted.target), "device": device, "threads": threads}
