"""In: a state and a stage to visit. Out: `CPU_RULES`, the derivation rules in the order in which they are asked.
Always: order is data.
"""

from compiler.search.sketch_rules.base import SketchContext, SketchRule, Verdict
from compiler.search.sketch_rules.cache_write import AddCacheWrite
from compiler.search.sketch_rules.inline import AlwaysInline
from compiler.search.sketch_rules.skip import SkipStage
from compiler.search.sketch_rules.tile import MultiLevelTiling
from compiler.search.sketch_rules.tile_and_fuse import MultiLevelTilingWithFusion

CPU_RULES: tuple[SketchRule, ...] = (
    AlwaysInline(),
    AddCacheWrite(),
    MultiLevelTilingWithFusion(),
    MultiLevelTiling(),
    SkipStage(),
)

__all__ = ["CPU_RULES", "SketchContext", "SketchRule", "Verdict"]
