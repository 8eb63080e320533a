"""Cost models as scripts use them. Ids are those of facts that TVM's own tests check."""

from pathlib import Path

import numpy as np
import pytest

from retune.compiler.core.errors import CorruptRecordError, StoreError
from retune.compiler.tvm.auto_scheduler import (
    MeasureErrorNo,
    MeasureInput,
    MeasureResult,
    RandomModel,
    SearchTask,
    SketchPolicy,
    State,
    XGBModel,
    register_workload,
    save_records,
)
from tests.support.tvm_scripts import matmul

SMALL = {"evolutionary_search_population": 256, "evolutionary_search_num_iters": 1}

register_workload("matmul_of_models", matmul, override=True)


def measured(count: int) -> tuple[SearchTask, list[State], list[MeasureInput], list[MeasureResult]]:
    """Sampled programs of a matmul, with random times."""
    task = SearchTask(func="matmul_of_models", args=(128, 128, 128), target="llvm")
    states = SketchPolicy(task, params=SMALL).sample_initial_population()[:count]
    seconds = np.random.default_rng(0).uniform(0.5, 1.0, len(states))
    results = [MeasureResult((float(time),), MeasureErrorNo.OK, "", 1.0, 1) for time in seconds]
    return task, states, [MeasureInput(task, state) for state in states], results


def test_a_random_model_accepts_updates_and_scores_every_program() -> None:
    task, states, inputs, results = measured(50)
    model = RandomModel()
    model.update(inputs, results)
    scores = model.predict(task, states)
    assert scores.shape == (50,)
    assert list(scores) == list(model.predict(task, states))
    assert len(set(scores)) > 40
    assert ((scores >= 0) & (scores < 1)).all()


def test_xgb_fits_random_times_and_survives_files(tmp_path: Path) -> None:
    task, states, inputs, results = measured(50)
    model = XGBModel(num_warmup_sample=-1)
    model.update(inputs, results)
    scores = model.predict(task, states)
    times = np.array([result.seconds for result in results])
    assert np.sqrt(np.mean((scores - times.min() / times) ** 2)) <= 0.3
    save_records(tmp_path / "log.json", inputs, results)
    again = XGBModel(num_warmup_sample=-1)
    again.update_from_file(tmp_path / "log.json")
    assert list(again.predict(task, states)) == pytest.approx(list(scores))
    model.save(tmp_path / "deep" / "model")
    loaded = XGBModel()
    loaded.load(tmp_path / "deep" / "model")
    assert list(loaded.predict(task, states)) == list(scores)


def test_loading_a_file_that_is_no_model_is_an_error(tmp_path: Path) -> None:
    model = XGBModel()
    with pytest.raises(StoreError, match="cannot read the cost model"):
        model.load(tmp_path / "none")
    (tmp_path / "text").write_text("no model", encoding="utf-8")
    with pytest.raises(CorruptRecordError, match="the data is no cost model, or is damaged"):
        model.load(tmp_path / "text")
    with pytest.raises(StoreError, match="not saved"):
        model.save(tmp_path / "text" / "model")


def test_a_model_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, inputs, results = measured(40)
    model = XGBModel(model_file=tmp_path / "model")
    model.update(inputs[:20], results[:20])
    before = (tmp_path / "model").read_bytes()

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StoreError, match="No space left"):
        model.update(inputs[20:], results[20:])
    assert (tmp_path / "model").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
