"""The boosted trees: quality on a made-up machine, reproducibility, bounded work, saving."""

import contextlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xgboost
from numpy.typing import NDArray

from retune.compiler.core.errors import CorruptRecordError, OptionError, StoreError
from retune.compiler.model import TrainingBatch, XGBModel, XGBOptions, training_data
from retune.compiler.model.boosted_trees import pack_sum_objective
from retune.compiler.model.features import FEATURE_NAMES, FEATURE_VERSION
from retune.compiler.model.training_set import History, TrainingRows
from tests.support.synthetic_programs import batch, programs

QUICK = XGBOptions(scratch_rounds=20, update_rounds=4, most_trees=40)


def rank_correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    ranks = [np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1]).item(1))


def trained(seed: int = 1, options: XGBOptions = QUICK, rounds: int = 4) -> XGBModel:
    model = XGBModel(seed, 1, options)
    for index in range(rounds):
        model.update(batch("task", 32, index))
    return model


def test_it_ranks_programs_it_has_not_seen() -> None:
    model = XGBModel(seed=3, threads=1)
    for index in range(10):
        model.update(batch("task", 64, index))
    features, seconds = programs(1000, 99)
    scores = model.predict(features)
    assert rank_correlation(scores, -seconds) > 0.9
    best_of_chosen = seconds[np.argsort(-scores)[:32]].min()
    assert seconds.min() / best_of_chosen > 0.9


def test_xgb_fits_random_times() -> None:
    features, _ = programs(50, 5)
    seconds = np.random.default_rng(0).uniform(0.5, 1.0, 50)
    model = XGBModel(seed=0, threads=1)
    model.update(TrainingBatch("task", features, seconds))
    error = model.predict(features) - seconds.min() / seconds
    assert np.sqrt(np.mean(error**2)) <= 0.3


def test_metrics_judge_a_batch_before_it_is_learned() -> None:
    model = XGBModel(seed=1, threads=1)
    model.update(batch("task", 64, 0))
    assert model.last_metrics is None
    for index in range(1, 8):
        unseen = batch("task", 64, index)
        scores = model.predict(unseen.features)
        model.update(unseen)
    metrics = model.last_metrics
    assert metrics is not None
    assert (metrics.programs, metrics.trained_on) == (64, 7 * 64)
    right = np.sign(scores[:, None] - scores) == np.sign(unseen.seconds - unseen.seconds[:, None])
    assert metrics.pair_accuracy == pytest.approx(right[~np.eye(64, dtype=bool)].mean(), abs=0.01)
    assert metrics.pair_accuracy > 0.8


def test_equal_updates_give_equal_scores() -> None:
    features, _ = programs(64, 50)
    np.testing.assert_array_equal(trained().predict(features), trained().predict(features))
    assert not np.array_equal(trained().predict(features), trained(seed=2).predict(features))


def test_two_threads_are_reproducible() -> None:
    features, _ = programs(64, 50)
    models = [XGBModel(1, 2, QUICK) for _ in range(2)]
    for model in models:
        model.update(batch("task", 300, 0))
    np.testing.assert_array_equal(models[0].predict(features), models[1].predict(features))


def test_predicting_changes_nothing() -> None:
    model, features = trained(), programs(16, 50)[0]
    first = model.predict(features)
    np.testing.assert_array_equal(model.predict(features), first)
    np.testing.assert_array_equal(model.predict(features[5:9]), first[5:9])


def test_before_the_warmup_scores_are_a_hash_of_the_program() -> None:
    features, _ = programs(40, 0)
    model = XGBModel(seed=1, threads=1)
    model.update(batch("task", 31, 3))
    scores = model.predict(features)
    assert np.all((scores >= 0) & (scores < 1))
    np.testing.assert_array_equal(scores, XGBModel(seed=1).predict(features))
    model.update(batch("task", 1, 4))
    assert not np.array_equal(scores, model.predict(features))


def test_programs_without_features_are_invalid() -> None:
    features, _ = programs(8, 0)
    features[3] = 0
    for model in (XGBModel(seed=1), trained()):
        scores = model.predict(features)
        assert scores[3] == -np.inf
        assert np.isfinite(np.delete(scores, 3)).all()


def test_rows_of_zeros_do_not_count_as_statements() -> None:
    def padded(one: TrainingBatch) -> TrainingBatch:
        return replace(one, features=np.pad(one.features, ((0, 0), (0, 2), (0, 0))))

    model = XGBModel(1, 1, QUICK)
    for index in range(4):
        model.update(padded(batch("task", 32, index)))
    features, _ = programs(16, 50)
    wide = np.pad(features, ((0, 0), (0, 2), (0, 0)))
    np.testing.assert_array_equal(model.predict(wide), trained().predict(features))


def test_tasks_may_differ_in_statements_and_failures_are_learned() -> None:
    model = XGBModel(1, 1, QUICK)
    model.update(batch("one", 64, 0))
    features, seconds = programs(64, 1)
    tile = list(FEATURE_NAMES).index("tile_fits")
    seconds = np.where(features[:, 0, tile] > 0, seconds, np.inf)
    model.update(TrainingBatch("two", np.repeat(features, 2, axis=1), seconds))
    scores = model.predict(np.repeat(features, 2, axis=1))
    assert scores[np.isfinite(seconds)].mean() > scores[np.isinf(seconds)].mean()


def test_a_task_where_all_fail_is_no_error() -> None:
    model = XGBModel(1, 1, QUICK)
    features, _ = programs(40, 0)
    model.update(TrainingBatch("task", features, np.full(40, np.inf)))
    model.update(TrainingBatch("task", features, np.full(40, np.inf)))
    assert np.abs(model.predict(features)).max() < 0.1


def test_a_better_time_lowers_the_labels_of_its_task_alone() -> None:
    history = History()
    history.append(TrainingBatch("a", programs(2, 0)[0], np.array([2.0, 4.0])))
    history.append(TrainingBatch("b", programs(1, 1)[0], np.array([8.0])))
    np.testing.assert_allclose(history.rows(0.1).labels, [1.0, 0.5, 1.0])
    history.append(TrainingBatch("a", programs(2, 2)[0], np.array([1.0, np.inf])))
    np.testing.assert_allclose(history.rows(0.1).labels, [0.5, 0.25, 1.0, 1.0, 0.0])
    np.testing.assert_allclose(history.rows(0.1).weights, [0.5, 0.25, 1.0, 1.0, 0.1])


def test_gradients_are_those_of_the_sum() -> None:
    data = TrainingRows(
        rows=np.zeros((3, 1), dtype=np.float32),
        starts=np.array([0, 2]),
        labels=np.array([1.0, 0.5]),
        weights=np.array([1.0, 0.5]),
    )
    gradient, hessian = pack_sum_objective(data)(
        np.array([0.25, 0.5, 1.0], dtype=np.float32), xgboost.DMatrix(data.rows)
    )
    np.testing.assert_allclose(gradient, [-0.25, -0.25, 0.25])
    np.testing.assert_allclose(hessian, [2.0, 2.0, 0.5])


def test_many_statements_do_not_make_boosting_diverge() -> None:
    features, seconds = programs(200, 0)
    many = np.repeat(features, 12, axis=1)
    model = XGBModel(1, 1)
    model.update(TrainingBatch("task", many, seconds))
    error = model.predict(many) - seconds.min() / seconds
    assert np.sqrt(np.mean(error**2)) < 0.1


@pytest.mark.parametrize(("most_trees", "scratches"), [(1000, 4), (24, 7)])
def test_work_per_update_is_bounded(monkeypatch: pytest.MonkeyPatch, most_trees: int, scratches: int) -> None:
    options = replace(QUICK, replay_programs=64, scratch_programs=128, most_trees=most_trees)
    model = XGBModel(1, 1, options)
    trained_rows: list[tuple[int, int]] = []
    boost = model._boost

    def spy(data: TrainingRows, rounds: int, start: object, update: int) -> None:
        trained_rows.append((len(data.labels), rounds))
        boost(data, rounds, start, update)  # type: ignore[arg-type]

    monkeypatch.setattr(model, "_boost", spy)
    for index in range(12):
        model.update(batch("task", 32, index))
    sizes = {rounds: max(size for size, grown in trained_rows if grown == rounds) for _, rounds in trained_rows}
    assert sizes[options.update_rounds] == 64 + 32
    assert sizes[options.scratch_rounds] == 128 + 32
    # From scratch at 32, 64, 128 and 256 programs, and every second time when one update fills the trees.
    assert sum(rounds == options.scratch_rounds for _, rounds in trained_rows) == scratches
    assert model.programs == 12 * 32


def test_a_saved_model_goes_on_alike(tmp_path: Path) -> None:
    model = trained()
    model.save(tmp_path / "model")
    copy = XGBModel.load(tmp_path / "model", threads=1)
    features, _ = programs(64, 50)
    np.testing.assert_array_equal(copy.predict(features), model.predict(features))
    for one in (model, copy):
        one.update(batch("task", 32, 9))
    np.testing.assert_array_equal(copy.predict(features), model.predict(features))
    assert copy.programs == model.programs


@pytest.mark.parametrize("rounds", [1, 4, 9])
def test_a_retraced_model_is_the_one_that_learned_step_by_step(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, again = trained(rounds=rounds), XGBModel(1, 1, QUICK)
    grown: list[int] = []
    boost = again._boost

    def spy(data: TrainingRows, rounds: int, start: object, update: int) -> None:
        grown.append(rounds)
        boost(data, rounds, start, update)  # type: ignore[arg-type]

    monkeypatch.setattr(again, "_boost", spy)
    with again.retracing():
        for index in range(rounds):
            again.update(batch("task", 32, index))
            assert not grown
    features, _ = programs(64, 50)
    np.testing.assert_array_equal(again.predict(features), usual.predict(features))
    assert grown.count(QUICK.scratch_rounds) == 1  # what came before the last training from scratch is left out
    for model in (usual, again):
        model.update(batch("task", 32, 77))
    np.testing.assert_array_equal(again.predict(features), usual.predict(features))


def test_what_is_known_beforehand_is_learned_in_one_training() -> None:
    teacher = trained(rounds=6)
    model = XGBModel(7, 1, QUICK)
    model.learn(teacher.training_data())
    assert model.programs == teacher.programs
    assert model.last_metrics is None
    features, seconds = programs(500, 99)
    assert rank_correlation(model.predict(features), -seconds) > 0.7
    model.update(batch("other", 32, 50))
    assert model.last_metrics is not None
    assert model.last_metrics.pair_accuracy > 0.7
    XGBModel().learn([])


def test_training_data_share_what_there_is_room_for_and_keep_the_fastest() -> None:
    model = XGBModel(1, 1, QUICK)
    model.update(batch("small", 10, 0))
    for index in range(3):
        model.update(batch("large", 100, 1 + index))
    training_data = {batch.task_key: batch for batch in model.training_data(most=60)}
    assert {key: len(batch.seconds) for key, batch in training_data.items()} == {"small": 10, "large": 50}
    assert training_data["large"].seconds.min() == min(
        batch("large", 100, 1 + index).seconds.min() for index in range(3)
    )


def test_an_adaptive_model_waits_for_a_fifth_more() -> None:
    model = XGBModel(1, 1, replace(QUICK, adaptive=True))
    model.update(batch("task", 100, 0))
    features, _ = programs(16, 50)
    first = model.predict(features)
    model.update(batch("task", 19, 1))
    np.testing.assert_array_equal(model.predict(features), first)
    model.update(batch("task", 1, 2))
    assert not np.array_equal(model.predict(features), first)


def test_a_model_of_other_features_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = trained().to_bytes()
    monkeypatch.setattr(training_data, "FEATURE_VERSION", FEATURE_VERSION + 1)
    with pytest.raises(StoreError, match="features of version"):
        XGBModel.from_bytes(data)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 nothing", b"xgboost"])
def test_loading_bytes_that_are_no_model_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(CorruptRecordError):
        XGBModel.from_bytes(data)
    with pytest.raises(StoreError, match="cannot read"):
        XGBModel.load(tmp_path / "nowhere")


def test_a_cut_file_is_refused() -> None:
    data = trained().to_bytes()
    with pytest.raises(CorruptRecordError):
        XGBModel.from_bytes(data[: len(data) // 2])


def test_batches_must_fit() -> None:
    features, seconds = programs(4, 0)
    with pytest.raises(OptionError, match="must be"):
        TrainingBatch("task", features, seconds[:3])
    with pytest.raises(OptionError, match="positive"):
        TrainingBatch("task", features, -seconds)
    with pytest.raises(OptionError, match="features"):
        XGBModel().update(TrainingBatch("task", features[:, :, 1:], seconds))


def test_bytes_that_were_changed_are_refused_or_read() -> None:
    """Whatever happens to a file, what comes of it is a model or one sentence."""
    data = trained(rounds=1).to_bytes()
    rng = np.random.default_rng(0)
    for _ in range(150):
        changed = bytearray(data)
        for place in rng.integers(len(data), size=int(rng.integers(1, 4))):
            changed[place] = rng.integers(256)
        with contextlib.suppress(StoreError):
            XGBModel.from_bytes(bytes(changed))
    fewer = TrainingBatch("task", np.zeros((2, 1, 3), np.float32), np.ones(2))
    model = trained(rounds=1)
    model._history.append(fewer)
    model._plans.append(2)
    with pytest.raises(CorruptRecordError, match="3 features"):
        XGBModel.from_bytes(model.to_bytes())


def test_python_without_docstrings_is_refused_in_one_sentence() -> None:
    code = "from retune.compiler.model.boosted_trees import XGBModel; XGBModel()"
    for option, sentence in (("-O", ""), ("-OO", "OptionError: XGBoost needs docstrings, which python -OO")):
        done = subprocess.run([sys.executable, option, "-c", code], capture_output=True, text=True, check=False)
        assert (done.stderr.splitlines() or [""])[-1].rpartition("errors.")[2].startswith(sentence)
        assert bool(done.returncode) == bool(sentence)
