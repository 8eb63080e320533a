"""In: a state and a stage to visit. Out: `CPU_RULES` and `GPU_RULES`, the derivation rules in the order in which they
are asked. Always: order is data.
"""

from retune.compiler.search.sketch_rules.base import SketchContext, SketchRule, Verdict
from retune.compiler.search.sketch_rules.cache_read import AddCacheRead
from retune.compiler.search.sketch_rules.cache_write import AddCacheWrite
from retune.compiler.search.sketch_rules.const_tensor import SimplifyComputeWithConstTensor
from retune.compiler.search.sketch_rules.cross_thread import CrossThreadReduction
from retune.compiler.search.sketch_rules.custom import PreloadCustomSketchRule
from retune.compiler.search.sketch_rules.inline import AlwaysInline
from retune.compiler.search.sketch_rules.parted_sum import PartedSum
from retune.compiler.search.sketch_rules.rfactor import AddRfactor
from retune.compiler.search.sketch_rules.skip import SkipStage
from retune.compiler.search.sketch_rules.special_location import SpecialComputeLocation
from retune.compiler.search.sketch_rules.tensor_core import TensorCoreTiling
from retune.compiler.search.sketch_rules.tile import MultiLevelTiling
from retune.compiler.search.sketch_rules.tile_and_fuse import MultiLevelTilingWithFusion
from retune.compiler.search.sketch_rules.transformed import TransformedConvolution

CPU_RULES: tuple[SketchRule, ...] = (
    TransformedConvolution(),
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
    PartedSum(),
    AddCacheWrite(),
    MultiLevelTilingWithFusion(levels=(3,)),
    MultiLevelTiling(),
    SkipStage(),
)

__all__ = ["CPU_RULES", "GPU_RULES", "PreloadCustomSketchRule", "SketchContext", "SketchRule", "Verdict"]
