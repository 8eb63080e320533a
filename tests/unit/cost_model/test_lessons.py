"""What a cost model knew, as bytes."""

import numpy as np
import pytest

from compiler.cost_model import lessons
from compiler.cost_model.lessons import lessons_from_bytes, lessons_to_bytes
from compiler.errors import CorruptRecordError, StoreError
from compiler.features import FEATURE_VERSION
from tests.unit.cost_model.synthetic import batch


def test_batches_come_back_as_they_were() -> None:
    written = [batch("one", 5, 0), batch("two", 3, 1)]
    read = lessons_from_bytes(lessons_to_bytes(written))
    assert [one.task_key for one in read] == ["one", "two"]
    for mine, theirs in zip(written, read, strict=True):
        np.testing.assert_array_equal(mine.features, theirs.features)
        np.testing.assert_array_equal(mine.seconds, theirs.seconds)
    assert lessons_from_bytes(lessons_to_bytes([])) == []


def test_other_features_and_other_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = lessons_to_bytes([batch("one", 5, 0)])
    with pytest.raises(CorruptRecordError):
        lessons_from_bytes(data[: len(data) // 2])
    monkeypatch.setattr(lessons, "FEATURE_VERSION", FEATURE_VERSION + 1)
    with pytest.raises(StoreError, match="features of version"):
        lessons_from_bytes(data)
