"""The sketch rules of CPUs and of GPUs, in the order of their application."""

from retune.compiler.search.rules.base import (
    CPU_SEARCH,
    GPU_SEARCH,
    PreloadCustomSketchRule,
    SketchContext,
    SketchRule,
    Verdict,
    search_kind,
)
from retune.compiler.search.rules.const_tensor import SimplifyComputeWithConstTensor, SpecialComputeLocation
from retune.compiler.search.rules.rfactor import AddRfactor, CrossThreadReduction
from retune.compiler.search.rules.split_k import SplitK
from retune.compiler.search.rules.stage import (
    AddCacheRead,
    AddCacheWrite,
    AlwaysInline,
    MultiLevelTiling,
    MultiLevelTilingWithFusion,
    SkipStage,
)
from retune.compiler.search.rules.tensor_core import TensorCoreTiling
from retune.compiler.search.rules.transformed import BlocksOfRows, TransformedConvolution

# TVM's order.
CPU_RULES: tuple[SketchRule, ...] = (
    TransformedConvolution(),
    BlocksOfRows(),
    AlwaysInline(),
    SimplifyComputeWithConstTensor(),
    AddRfactor(),
    AddCacheWrite(),
    MultiLevelTilingWithFusion(levels=(1, 2)),
    MultiLevelTiling(),
    SkipStage(),
)

GPU_RULES: tuple[SketchRule, ...] = (
    AddCacheRead(),
    SpecialComputeLocation(),
    AlwaysInline(),
    SimplifyComputeWithConstTensor(),
    TensorCoreTiling(),
    CrossThreadReduction(),
    SplitK(),
    AddCacheWrite(ends_visit=True),
    MultiLevelTilingWithFusion(levels=(3,), ends_visit=True),
    MultiLevelTiling(),
    SkipStage(),
)

RULES = {CPU_SEARCH.name: CPU_RULES, GPU_SEARCH.name: GPU_RULES}
"""The derivation rules of every kind of search."""

__all__ = [
    "CPU_RULES", "GPU_RULES", "RULES", "PreloadCustomSketchRule", "SketchContext", "SketchRule", "Verdict",
    "search_kind",
]  # fmt: skip
