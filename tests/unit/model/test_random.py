"""The model that knows nothing, and the figures that judge a model."""

import numpy as np
import pytest

from retune.compiler.model import CostModel, RandomModel, XGBModel
from retune.compiler.model.base import judge, pair_accuracy, top_recall
from tests.support.synthetic_programs import batch, programs


@pytest.mark.parametrize("model", [RandomModel(0), XGBModel(0)], ids=["random", "xgb"])
def test_every_model_keeps_the_protocol(model: CostModel) -> None:
    features, _ = programs(50, 0)
    model.update(batch("task", 50, 1))
    assert model.predict(features).shape == (50,)
    assert model.predict(features[:0]).shape == (0,)


def test_random_scores_depend_on_seed_and_program_alone() -> None:
    features, _ = programs(512, 0)
    scores = RandomModel(1).predict(features)
    np.testing.assert_array_equal(RandomModel(1).predict(features[100:200]), scores[100:200])
    assert not np.array_equal(RandomModel(2).predict(features), scores)
    assert abs(scores.mean() - 0.5) < 0.1
    model = RandomModel(1)
    model.update(batch("task", 8, 0))
    np.testing.assert_array_equal(model.predict(features), scores)


def test_random_scores_are_spread_for_like_programs() -> None:
    features = np.ones((1000, 2, 3), dtype=np.float32)
    features[:, 0, 0] = np.arange(1, 1001)
    scores = np.sort(RandomModel(3).predict(features))
    assert np.abs(scores - np.linspace(0, 1, 1000)).max() < 0.08


def test_pair_accuracy_is_the_share_of_pairs_in_order() -> None:
    truth = np.array([1.0, 2.0, 3.0])
    assert pair_accuracy(truth, truth) == 1.0
    assert pair_accuracy(-truth, truth) == 0.0
    assert pair_accuracy(np.zeros(3), truth) == 0.5
    assert pair_accuracy(np.array([1.0, 3.0, 2.0]), truth) == pytest.approx(2 / 3)
    assert pair_accuracy(np.array([-np.inf, -np.inf, 0.0]), truth) == pytest.approx((2 + 0.5) / 3)
    assert pair_accuracy(truth, np.ones(3)) == 1.0


def test_top_recall_and_peak() -> None:
    truth = np.array([0.1, 0.9, 0.5, 1.0])
    assert top_recall(np.array([0.0, 2.0, 3.0, 1.0]), truth, 2) == 0.5
    metrics = judge(np.array([0.0, 2.0, 3.0, 1.0]), truth, trained_on=7)
    assert (metrics.top, metrics.top_recall, metrics.trained_on) == (2, 0.5, 7)
    assert metrics.peak == pytest.approx(0.9)
