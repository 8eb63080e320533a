"""In: training batches. Out: bytes that another run can learn from, and the batches again. Always: nothing is lost, and
batches of another version of the features are refused.
"""

import json
import struct
import tokenize
import zlib
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from compiler.cost_model.base import TrainingBatch
from compiler.errors import CorruptRecordError, OptionError, StoreError
from compiler.features import FEATURE_VERSION

UNREADABLE = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
    RecursionError,
    RuntimeError,
    OSError,
    OptionError,
    BadZipFile,
    EOFError,
    struct.error,
    tokenize.TokenError,
    zlib.error,
)
"""What reading arrays from bytes may raise when they are none."""


def lessons_to_bytes(batches: Sequence[TrainingBatch]) -> bytes:
    """The batches in one compressed archive of arrays."""
    header = {"feature_version": FEATURE_VERSION, "tasks": [batch.task_key for batch in batches]}
    arrays: dict[str, NDArray[Any]] = {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)}
    for index, batch in enumerate(batches):
        arrays[f"features{index}"] = batch.features
        arrays[f"seconds{index}"] = batch.seconds
    buffer = BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def lessons_from_bytes(data: bytes) -> list[TrainingBatch]:
    """What `lessons_to_bytes` wrote.

    Raises: StoreError when the features are of another version, CorruptRecordError when it is something else.
    """
    try:
        with np.load(BytesIO(data), allow_pickle=False) as arrays:
            header = json.loads(arrays["header"].tobytes())
            version = header["feature_version"]
            if version != FEATURE_VERSION:
                raise StoreError(
                    f"what was learned is of features of version {version}, this is version {FEATURE_VERSION}"
                )
            return [batch_in(arrays, index, key) for index, key in enumerate(header["tasks"])]
    except UNREADABLE as error:
        raise CorruptRecordError(f"this is nothing to learn from: {error}") from error


def batch_in(arrays: Mapping[str, NDArray[Any]], index: int, task_key: object) -> TrainingBatch:
    """Batch number `index` of an archive.

    Raises: an error of `UNREADABLE` when it is missing or of other types.
    """
    features, seconds = arrays[f"features{index}"], arrays[f"seconds{index}"]
    if not isinstance(task_key, str) or features.dtype != np.float32 or seconds.dtype != np.float64:
        raise TypeError(f"batch {index} is of {features.dtype} and {seconds.dtype}, for the task {task_key!r}")
    return TrainingBatch(task_key, features, seconds)
