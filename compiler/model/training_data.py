"""Training data of cost models as bytes: a compressed archive (`retune.compiler.runtime.archive`).

header.json                        the version of the features, the task of every batch, facts of a whole model
features0.npy, seconds0.npy, ...   the batches
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np

from retune.compiler.core.errors import CorruptRecordError, StoreError
from retune.compiler.core.json_reader import JsonObject
from retune.compiler.model.base import TrainingBatch
from retune.compiler.model.features import FEATURE_VERSION
from retune.compiler.runtime.archive import Archive, archive_bytes, reject_damage

_KIND, _VERSION = "training data", 2
_HEADER = "header.json"


def batches_to_bytes(batches: Sequence[TrainingBatch]) -> bytes:
    """The batches in one compressed archive."""
    return archive_of(batches, {})


def batches_from_bytes(data: bytes) -> list[TrainingBatch]:
    """The batches that `batches_to_bytes` wrote.

    Raises: StoreError when the features are of another version or do not fit into the memory, CorruptRecordError for
    other data.
    """
    with refuse_wrong_data("training data"):
        archive = open_archive(data)
        return list(batches_in(archive, header_of(archive, "the training data is")))


def refuse_wrong_data(what: str) -> AbstractContextManager[None]:
    """Turn any error of reading an archive of `what` into StoreError or CorruptRecordError."""
    return reject_damage(what, "the data", StoreError, CorruptRecordError)


def archive_of(batches: Sequence[TrainingBatch], facts: Mapping[str, object]) -> bytes:
    """Batches in one compressed archive, with `facts` in its header."""
    header = {"feature_version": FEATURE_VERSION, **facts, "tasks": [batch.task_key for batch in batches]}
    parts: dict[str, object] = {_HEADER: header}
    for index, batch in enumerate(batches):
        parts |= {f"features{index}.npy": batch.features, f"seconds{index}.npy": batch.seconds}
    return archive_bytes(_KIND, _VERSION, parts, compress=True)


def open_archive(data: bytes) -> Archive:
    """The archive that `archive_of` wrote. Raises: as `Archive`."""
    return Archive(data, _KIND, _VERSION)


def header_of(archive: Archive, what: str) -> JsonObject:
    """The header of an archive; `what` names the archive in errors.

    Raises: StoreError when the features are of another version; an error of `DAMAGE` when there is none.
    """
    header: JsonObject = archive.json(_HEADER)
    version = header["feature_version"]
    if version != FEATURE_VERSION:
        raise StoreError(f"{what} of features of version {version}, this is version {FEATURE_VERSION}; train again")
    return header


def batches_in(archive: Archive, header: JsonObject) -> Iterator[TrainingBatch]:
    """The batches of an archive. Raises: an error of `DAMAGE` when a batch is missing or of other types."""
    for index, task_key in enumerate(header["tasks"]):
        features, seconds = archive.array(f"features{index}.npy"), archive.array(f"seconds{index}.npy")
        if not isinstance(task_key, str) or features.dtype != np.float32 or seconds.dtype != np.float64:
            raise TypeError(f"batch {index} is of {features.dtype} and {seconds.dtype}, for the task {task_key!r}")
        yield TrainingBatch(task_key, features, seconds)
