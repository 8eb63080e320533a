"""Features: columns of numbers that describe loop nests for a cost model."""

from retune.compiler.model.features.extract import extract
from retune.compiler.model.features.table import FEATURE_NAMES, FEATURE_VERSION

__all__ = ["FEATURE_NAMES", "FEATURE_VERSION", "extract"]
