"""Cost models: rank programs by their features. A model is determined by its data and a seed."""

from retune.compiler.model.base import CostModel, TrainingBatch
from retune.compiler.model.boosted_trees import XGBModel, XGBOptions
from retune.compiler.model.metrics import ModelMetrics
from retune.compiler.model.random import RandomModel

__all__ = ["CostModel", "ModelMetrics", "RandomModel", "TrainingBatch", "XGBModel", "XGBOptions"]
