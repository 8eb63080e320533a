"""Chooses the program of every kernel of a network from what the store knows, measuring nothing."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.core import config
from retune.compiler.core.gpu_facts import capability_of
from retune.compiler.measure.record import CONFIRMED, DEFAULT_SCHEDULE, BestProgram, MeasureRecord, MeasureStatus
from retune.compiler.runtime.cuda.driver_interface import GpuDevice
from retune.compiler.schedule.steps import dump_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.tune.extract import ExtractedNetwork
from retune.storage.base import speed
from retune.storage.parquet import ParquetRecordStore
from retune.storage.reports import Confirmed, confirmed_by_reports
from retune.storage.store_url import Place


@dataclass(frozen=True, slots=True)
class KnownPrograms:
    """What serves each task of a network, by task key: `programs` with the time that counts for each, infinite where
    another way to compute the same is known to be faster. `others_of` gives what may serve a task where that cannot be
    built, the fastest first: no program measured before a run confirmed a slower program, since it may have been
    found wrong.
    """

    programs: dict[str, BestProgram]
    others_of: Callable[[str], Sequence[BestProgram]] = lambda _: ()

    @classmethod
    def of(cls, extracted: ExtractedNetwork, home: Place, gpu: GpuDevice | None) -> Self:
        """Those for this machine; for a GPU that this one lacks, those of all machines.

        The program that a run confirmed last serves, since the fastest record of hundreds may have been a disturbed
        timing, or wrong in a fresh process. It does so until a later record is faster than it was confirmed. A task
        that no run confirmed, as of an interrupted run, has its fastest record. Of several ways to compute a
        layer a run confirms one.
        Raises: StoreError.
        """
        store, scope = ParquetRecordStore(home), record_scope(extracted, gpu)
        fastest = store.best_per_task(**scope)
        layers: dict[int, list[SearchTask]] = {}
        for task, layer in zip(extracted.tasks, extracted.layers, strict=True):
            if task.workload_key in fastest:
                layers.setdefault(layer, []).append(task)
        rows = {
            task.workload_key: store.records(task_key=task.workload_key, confirmations=True, **scope)
            for tasks in layers.values()
            for task in tasks
        }
        unconfirmed = {
            task.workload_key: task for tasks in layers.values() if not _newest(rows, tasks) for task in tasks
        }
        earlier = confirmed_by_reports(home, unconfirmed, scope) if unconfirmed else {}
        for key, confirmed in earlier.items():
            rows[key] += _of_report(unconfirmed[key], confirmed, rows[key])
        programs, latest = {}, {}
        for tasks in layers.values():
            confirmation = _newest(rows, tasks)
            for task in tasks:
                key = task.workload_key
                programs[key] = _serving(rows[key], confirmation, fastest[key])
                latest[key] = confirmation
        return cls(programs, lambda key: _others_of(rows.get(key, ()), latest.get(key)))


def _newest(rows: Mapping[str, Sequence[MeasureRecord]], tasks: Iterable[SearchTask]) -> MeasureRecord | None:
    """The newest confirmation of the tasks, which are the ways to compute one layer."""
    confirmations = (record for task in tasks for record in rows[task.workload_key] if record.is_confirmation)
    return max(confirmations, key=lambda record: (record.timestamp, -record.seconds), default=None)


def _serving(rows: Sequence[MeasureRecord], newest: MeasureRecord | None, fastest: MeasureRecord) -> BestProgram:
    """The program of a task with the records `rows`, where its layer has the `newest` confirmation."""
    if newest is None:
        return BestProgram.of(fastest)
    later = [row for row in rows if row.timestamp > newest.timestamp and row.seconds < newest.seconds]
    if later or (newest.task_key == fastest.task_key and math.isfinite(newest.seconds)):
        return BestProgram.of(min(later, key=speed, default=newest))
    return replace(BestProgram.of(fastest), seconds=math.inf)


def _others_of(rows: Sequence[MeasureRecord], newest: MeasureRecord | None) -> list[BestProgram]:
    right = [row for row in rows if math.isfinite(row.seconds) and not row.censored and not row.is_confirmation]
    known = [row for row in right if newest is None or row.timestamp > newest.timestamp or row.seconds > newest.seconds]
    return [BestProgram.of(row) for row in sorted(known, key=speed)]


def _of_report(task: SearchTask, confirmed: Confirmed, rows: Sequence[MeasureRecord]) -> list[MeasureRecord]:
    """The confirmation that a run of an earlier version has in its report, unless the program is not known any more."""
    record_id, seconds, moment = confirmed
    steps, mutation = dump_steps(default_steps_of(task)), f"{CONFIRMED}, {DEFAULT_SCHEDULE}"
    if record_id:
        named = [record for record in rows if record.record_id == record_id]
        if not named:
            return []
        steps, mutation = named[0].steps, f"{CONFIRMED}, {named[0].mutation}"
    timed = () if math.isinf(seconds) else (seconds,)
    made = replace(rows[0], record_id="", parent_id=record_id, steps=steps, mutation=mutation, timestamp=moment)
    return [replace(made, costs=timed, status=MeasureStatus.OK, censored=False)]


def threads_of_records(extracted: ExtractedNetwork, home: Place, gpu: GpuDevice | None, keys: set[str]) -> list[int]:
    """The other numbers of threads for which there are records of these tasks on this machine."""
    scope = {**record_scope(extracted, gpu), "threads": None}
    records = (record for key in keys for record in ParquetRecordStore(home).records(task_key=key, **scope))
    return sorted({record.threads for record in records} - {extracted.threads})


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
