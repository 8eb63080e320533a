"""In: loop nests of many programs. Out: numbers that a cost model can learn from. Always: one column, one meaning."""

from retune.compiler.features.extract import extract
from retune.compiler.features.table import FEATURE_NAMES, FEATURE_VERSION

__all__ = ["FEATURE_NAMES", "FEATURE_VERSION", "extract"]
