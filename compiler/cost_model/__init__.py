"""Cost models: rank programs by their features. A model is determined by its data and a seed."""

from retune.compiler.cost_model.base import CostModel, TrainingBatch
from retune.compiler.cost_model.metrics import ModelMetrics
from retune.compiler.cost_model.random import RandomModel
from retune.compiler.cost_model.xgb import XGBModel, XGBOptions

__all__ = ["CostModel", "ModelMetrics", "RandomModel", "TrainingBatch", "XGBModel", "XGBOptions"]
