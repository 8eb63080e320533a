"""Cost models: rank programs by their features. A model is determined by its data and a seed."""

from retune.compiler.model.base import CostModel, ModelMetrics, RandomModel, TrainingBatch
from retune.compiler.model.boosted_trees import XGBModel, XGBOptions

__all__ = ["CostModel", "ModelMetrics", "RandomModel", "TrainingBatch", "XGBModel", "XGBOptions"]
