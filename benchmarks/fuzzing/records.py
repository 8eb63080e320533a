"""Fuzz cases of the loaders of tuning logs, record stores and cost model data.

Whatever loads is used: steps are replayed and scores predicted.
"""

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.fuzzing.case import FuzzCase, drawn
from benchmarks.fuzzing.mutations import (
    Mutate,
    archive_of,
    mutated_bytes,
    mutated_json,
    mutated_lines,
    mutated_members,
    spliced,
    zip_members,
)
from retune.compiler import te
from retune.compiler.core.errors import LogFormatError, ScheduleError, StoreError
from retune.compiler.core.target import Target
from retune.compiler.driver.dispatch import ApplyHistoryBest
from retune.compiler.measure.logs.log import LoggedTask, LoggedTrial, from_record, to_record, write_line
from retune.compiler.measure.record import MeasureRecord, MeasureStatus
from retune.compiler.model.base import TrainingBatch
from retune.compiler.model.boosted_trees import XGBModel, XGBOptions
from retune.compiler.model.features import FEATURE_NAMES
from retune.compiler.model.training_data import batches_from_bytes, batches_to_bytes
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import Annotate, Reorder, Split, load_steps
from retune.storage.layout import part_folder
from retune.storage.parquet import ParquetRecordStore
from retune.storage.parts import encode, part_name
from retune.storage.schema import canonical

_KEY = '["fuzz.matmul", 16, 32, 8]'
_CPU = "llvm -mcpu=znver5"
_ULID = "01K" + "0" * 23
_serial = itertools.count()


def _matmul() -> ComputeDAG:
    a, b, k = te.placeholder((16, 8), name="a"), te.placeholder((8, 32), name="b"), te.reduce_axis((0, 8), "k")
    return ComputeDAG([a, b, te.compute((16, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")])


def _trials() -> list[LoggedTrial]:
    task = LoggedTask(_KEY, _CPU, (2, 64, 64, 0, 0, 0, 0, 0), "llvm", 2, ("w",))
    steps = (Split(2, 0, 16, (4, 2), True), Reorder(2, (0, 3, 4, 1, 2)), Annotate(2, 0, 3))
    good = LoggedTrial(task, steps, (0.001, 0.0012), MeasureStatus.OK, 1.5, 1_700_000_000)
    failed = replace(good, costs=(), status=MeasureStatus.RUN_TIMEOUT, steps=(Split(2, 1, 32, (8,), True),))
    return [good, failed, replace(good, steps=steps[:1], costs=(0.002,))]


def _logs() -> list[bytes]:
    return ["".join(write_line(trial) + "\n" for trial in _trials()).encode()]


def _load_log(path: Path) -> object:
    history = ApplyHistoryBest(path, include_compatible=True)
    return history.known(Target(_CPU), _KEY, _matmul())


def _stored() -> list[MeasureRecord]:
    return [canonical(to_record(trial, "host")) for trial in _trials()]


def _parts() -> list[bytes]:
    data = encode(_stored())
    return [_named(data)]


def _named(data: bytes) -> bytes:
    """A file behind a name that vouches for it."""
    checksums = part_name(data)[len(_ULID) :]
    return f"{_ULID}{checksums}\n".encode() + data


def _spoiled_part(samples: Sequence[bytes], draw: Random) -> bytes:
    """A name and a file: other bytes under the old name, or other rows in a file that is as it should be."""
    name, _, data = samples[0].partition(b"\n")
    if draw.random() < 0.4:
        changed = spliced(data, data, draw) if draw.random() < 0.1 else mutated_bytes(data, draw)
        return name + b"\n" + changed
    return _named(encode([_spoiled_row(record, draw) for record in _stored()]))


def _spoiled_row(record: MeasureRecord, draw: Random) -> MeasureRecord:
    column = draw.choice(("steps", "steps", "options", "task_key", "target", "error", "run_id"))
    text = str(getattr(record, column)).encode()
    shaped = column in ("steps", "options", "task_key") and draw.random() < 0.8
    changed = mutated_json(text, draw) if shaped else mutated_bytes(text, draw)
    spoiled: dict[str, Any] = {column: changed.decode("utf-8", "replace"), "round": draw.randrange(4)}
    return canonical(replace(record, **spoiled))


def _load_part(path: Path) -> object:
    """Every record of a store that has this file, and the programs in them."""
    name, _, data = path.read_bytes().partition(b"\n")
    root = path.with_name(f"store{next(_serial)}")
    folder = root / part_folder(_CPU, _KEY)
    folder.mkdir(parents=True)
    try:
        (folder / name.decode()).write_bytes(data)
        store = ParquetRecordStore(root)
        found = store.records()
        if not found:
            store.check()
        store.best_per_task()
        for record in found:
            from_record(record)
            replay(_matmul(), load_steps(record.steps))
        return found
    finally:
        shutil.rmtree(root)


def _batch() -> TrainingBatch:
    rng = np.random.default_rng(0)
    features = rng.random((40, 2, len(FEATURE_NAMES)), np.float32)
    return TrainingBatch("task", features, rng.random(40) + 0.1)


def _checkpoint() -> list[bytes]:
    return [batches_to_bytes([_batch()])]


def _models() -> list[bytes]:
    model = XGBModel(1, options=XGBOptions(scratch_rounds=4, max_depth=3))
    model.update(_batch())
    return [model.to_bytes()]


def _inside(name: str) -> Mutate:
    if name.endswith(".json"):
        return mutated_json
    return _mutated_text if name == "header.npy" else mutated_bytes


def _mutated_text(data: bytes, draw: Random) -> bytes:
    """JSON that is kept as an array of bytes."""
    text = np.load(BytesIO(data), allow_pickle=False).tobytes()
    sink = BytesIO()
    np.save(sink, np.frombuffer(mutated_json(text, draw), np.uint8))
    return sink.getvalue()


def _rezipped(data: bytes, draw: Random) -> bytes:
    return archive_of(mutated_members(zip_members(data), draw, _inside))


def _load_model(path: Path) -> object:
    model = XGBModel.load(path)
    return model.predict(np.ones((3, 2, len(FEATURE_NAMES)), np.float32))


def _load_checkpoint(path: Path) -> object:
    model = XGBModel(1, options=XGBOptions(warmup=10**9))
    model.learn(batches_from_bytes(path.read_bytes()))
    return model.training_data()


CASES = (
    FuzzCase("log", _logs, drawn(mutated_lines), _load_log, (LogFormatError,), ".json"),
    FuzzCase("records", _parts, _spoiled_part, _load_part, (StoreError, LogFormatError, ScheduleError), ".part"),
    FuzzCase("lessons", _checkpoint, drawn(_rezipped), _load_checkpoint, (StoreError,), ".npz"),
    FuzzCase("model", _models, drawn(_rezipped), _load_model, (StoreError,), ".npz"),
)
