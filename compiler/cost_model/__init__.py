"""In: features. Out: a ranking of programs. Always: a model is data and a seed; no clock, no global random state."""

from retune.compiler.cost_model.base import CostModel, TrainingBatch
from retune.compiler.cost_model.metrics import ModelMetrics
from retune.compiler.cost_model.random import RandomModel
from retune.compiler.cost_model.xgb import XGBModel, XGBOptions

__all__ = ["CostModel", "ModelMetrics", "RandomModel", "TrainingBatch", "XGBModel", "XGBOptions"]
