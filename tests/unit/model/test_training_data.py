"""What a cost model knew, as bytes."""

import zipfile
from io import BytesIO

import numpy as np
import pytest

from retune.compiler.core.errors import CorruptRecordError, StoreError
from retune.compiler.model import training_data
from retune.compiler.model.base import TrainingBatch
from retune.compiler.model.features import FEATURE_VERSION
from retune.compiler.model.training_data import archive_of, batches_from_bytes, batches_to_bytes
from retune.compiler.runtime.threads import affinity
from tests.support.synthetic_programs import batch


def test_batches_come_back_as_they_were() -> None:
    written = [batch("one", 5, 0), batch("two", 3, 1)]
    read = batches_from_bytes(batches_to_bytes(written))
    assert [one.task_key for one in read] == ["one", "two"]
    for mine, theirs in zip(written, read, strict=True):
        np.testing.assert_array_equal(mine.features, theirs.features)
        np.testing.assert_array_equal(mine.seconds, theirs.seconds)
    assert batches_from_bytes(batches_to_bytes([])) == []


def test_other_features_and_other_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = batches_to_bytes([batch("one", 5, 0)])
    with pytest.raises(CorruptRecordError):
        batches_from_bytes(data[: len(data) // 2])
    monkeypatch.setattr(training_data, "FEATURE_VERSION", FEATURE_VERSION + 1)
    with pytest.raises(StoreError, match="features of version"):
        batches_from_bytes(data)


def test_a_header_that_is_no_python_is_damage() -> None:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1 2), }"
        archive.writestr("header.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(CorruptRecordError):
        batches_from_bytes(buffer.getvalue())


def test_one_array_is_no_archive() -> None:
    buffer = BytesIO()
    np.save(buffer, np.zeros(3))
    with pytest.raises(CorruptRecordError):
        batches_from_bytes(buffer.getvalue())


def test_training_data_that_inflate_beyond_the_memory_are_not_called_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    features = (
        np.random.default_rng(0).integers(0, 4, (1 << 15, 1, 64)).astype(np.float32)
    )  # 8 MB, of which 1 when packed
    data = archive_of([TrainingBatch("task", features, np.ones(1 << 15))], {})
    monkeypatch.setattr(affinity, "free_memory_bytes", lambda _: 4 << 20)
    with pytest.raises(StoreError, match=r"does not fit into the free memory: .* GiB are free") as caught:
        batches_from_bytes(data)
    assert not isinstance(caught.value, CorruptRecordError)
