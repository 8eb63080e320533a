"""Chooses the program of every kernel of a network from what the store knows, measuring nothing."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from retune.compiler import config
from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.driver.extract import ExtractedNetwork
from retune.compiler.gpu_facts import capability_of
from retune.compiler.measure.record import DEFAULT_SCHEDULE, BestProgram, MeasureRecord
from retune.compiler.runtime.cuda_driver import GpuDevice
from retune.compiler.schedule.steps import dump_steps
from retune.compiler.schedule.task import SearchTask
from retune.storage.base import speed
from retune.storage.parquet import ParquetRecordStore
from retune.storage.reports import Confirmed, confirmed_programs
from retune.storage.store_url import Place


@dataclass(frozen=True, slots=True)
class KnownPrograms:
    """What serves each task of a network, by task key: `programs` with the time that counts for each, infinite where
    another way to compute the same is known to be faster, and their `records`. The default schedule has no record.
    `others_of` gives what may serve a task where that cannot be built, the fastest first: no program that was measured
    before a run confirmed a slower one, since it may have been found wrong.
    """

    programs: dict[str, BestProgram]
    records: dict[str, MeasureRecord]
    others_of: Callable[[str], Sequence[BestProgram]] = lambda _: ()

    @classmethod
    def of(cls, extracted: ExtractedNetwork, home: Place, gpu: GpuDevice | None) -> Self:
        """Those for this machine; for a GPU that this one lacks, those of all machines.

        The program that a run confirmed last serves, since the fastest record of hundreds may have been a disturbed
        timing, or wrong in a fresh process. It does so until a later record is faster than it was confirmed. A task
        that no run confirmed, as of one that was interrupted, has its fastest record.
        Raises: StoreError.
        """
        store, scope = ParquetRecordStore(home), record_scope(extracted, gpu)
        fastest = store.best_per_task(**scope)
        confirmed = confirmed_programs(home, fastest.keys() & set(extracted.task_keys), scope)
        programs: dict[str, BestProgram] = {}
        records: dict[str, MeasureRecord] = {}
        for task in extracted.tasks:
            key = task.workload_key
            if key not in fastest:
                continue
            record: MeasureRecord | None = fastest[key]
            programs[key] = BestProgram.of(fastest[key])
            if (found := confirmed.get(key)) is not None:
                programs[key], record = _serving(task, found, store.records(task_key=key, **scope))
            if record is not None:
                records[key] = record
        return cls(programs, records, partial(_others_of, store, scope, confirmed))

    @classmethod
    def of_records(cls, records: Mapping[str, MeasureRecord]) -> Self:
        """The programs of these records, by task key."""
        return cls(BestProgram.of_each(records), dict(records))


def threads_of_records(extracted: ExtractedNetwork, home: Place, gpu: GpuDevice | None, keys: set[str]) -> list[int]:
    """The other numbers of threads for which there are records of these tasks on this machine."""
    scope = {**record_scope(extracted, gpu), "threads": None}
    records = (record for key in keys for record in ParquetRecordStore(home).records(task_key=key, **scope))
    return sorted({record.threads for record in records} - {extracted.threads})


def _others_of(
    store: ParquetRecordStore, scope: Mapping[str, Any], confirmed: Mapping[str, Confirmed], key: str
) -> list[BestProgram]:
    found = confirmed.get(key)
    right = [one for one in store.records(task_key=key, **scope) if math.isfinite(one.seconds) and not one.censored]
    known = [one for one in right if found is None or one.timestamp > found.completed or one.seconds > found.seconds]
    return [BestProgram.of(record) for record in sorted(known, key=speed)]


def _serving(
    task: SearchTask, confirmed: Confirmed, records: Sequence[MeasureRecord]
) -> tuple[BestProgram, MeasureRecord | None]:
    """The program of a task that a run confirmed, and the record it has, among `records`, if it has one."""
    right = [record for record in records if math.isfinite(record.seconds)]
    later = [one for one in right if one.timestamp > confirmed.completed and one.seconds < confirmed.seconds]
    named = [one for one in right if one.record_id == confirmed.record_id]
    # Without its record, as after old ones were removed, the program is not known any more.
    fastest = min(later or named or right, key=speed)
    if later or (confirmed.record_id and not named):
        return BestProgram.of(fastest), fastest
    if named or math.isinf(confirmed.seconds):
        return replace(BestProgram.of(fastest), seconds=confirmed.seconds), fastest
    steps = dump_steps(default_steps_of(task))
    return BestProgram(task.workload_key, steps, confirmed.seconds, mutation=DEFAULT_SCHEDULE), None


def record_scope(extracted: ExtractedNetwork, gpu: GpuDevice | None) -> dict[str, Any]:
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
