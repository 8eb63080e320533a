"""Training data of cost models as bytes, and back. Data of another version of the features is refused."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retune.compiler.cost_model.base import TrainingBatch
from retune.compiler.errors import CorruptRecordError, OptionError, StoreError
from retune.compiler.features import FEATURE_VERSION
from retune.compiler.runtime.archives import DAMAGE, check_archive, too_large

UNREADABLE = (*DAMAGE, OptionError)
"""What reading arrays from bytes may raise when they are none."""


@contextmanager
def unpacked(data: bytes) -> Iterator[Mapping[str, NDArray[Any]]]:
    """The arrays of a compressed archive. Raises, also in the block: an error of `UNREADABLE`; StoreError when there is
    too little memory.
    """
    try:
        with np.load(BytesIO(data), allow_pickle=False) as arrays:
            if not isinstance(arrays, np.lib.npyio.NpzFile) or arrays.zip is None:
                raise TypeError("it is one array, not an archive of them")
            check_archive(arrays.zip)
            yield arrays
    except MemoryError as error:
        raise StoreError(too_large("an archive of arrays", error)) from error


def lessons_to_bytes(batches: Sequence[TrainingBatch]) -> bytes:
    """The batches in one compressed archive of arrays."""
    return archived(batches, {}, {})


def lessons_from_bytes(data: bytes) -> list[TrainingBatch]:
    """What `lessons_to_bytes` wrote.

    Raises: StoreError when the features are of another version or do not fit into the memory,
    CorruptRecordError when it is something else.
    """
    try:
        with unpacked(data) as arrays:
            return list(batches_in(arrays, header_of(arrays, "what was learned is")))
    except UNREADABLE as error:
        raise CorruptRecordError(f"this is nothing to learn from: {error}") from error


def archived(batches: Sequence[TrainingBatch], facts: Mapping[str, object], more: Mapping[str, bytes]) -> bytes:
    """Batches in one compressed archive of arrays, with `facts` in its header and `more` beside them."""
    header = {"feature_version": FEATURE_VERSION, **facts, "tasks": [batch.task_key for batch in batches]}
    texts = {"header": json.dumps(header).encode(), **more}
    arrays: dict[str, NDArray[Any]] = {name: np.frombuffer(text, dtype=np.uint8) for name, text in texts.items()}
    for index, batch in enumerate(batches):
        arrays[f"features{index}"] = batch.features
        arrays[f"seconds{index}"] = batch.seconds
    buffer = BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def header_of(arrays: Mapping[str, NDArray[Any]], what: str) -> Mapping[str, Any]:
    """The header of an archive, for errors `what` it is.

    Raises: StoreError when the features are of another version; an error of `UNREADABLE` when there is none.
    """
    header: Mapping[str, Any] = json.loads(arrays["header"].tobytes())
    version = header["feature_version"]
    if version != FEATURE_VERSION:
        raise StoreError(f"{what} of features of version {version}, this is version {FEATURE_VERSION}; train anew")
    return header


def batches_in(arrays: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> Iterator[TrainingBatch]:
    """The batches of an archive. Raises: an error of `UNREADABLE` when one is missing or of other types."""
    for index, task_key in enumerate(header["tasks"]):
        yield _batch_in(arrays, index, task_key)


def _batch_in(arrays: Mapping[str, NDArray[Any]], index: int, task_key: object) -> TrainingBatch:
    features, seconds = arrays[f"features{index}"], arrays[f"seconds{index}"]
    if not isinstance(task_key, str) or features.dtype != np.float32 or seconds.dtype != np.float64:
        raise TypeError(f"batch {index} is of {features.dtype} and {seconds.dtype}, for the task {task_key!r}")
    return TrainingBatch(task_key, features, seconds)
