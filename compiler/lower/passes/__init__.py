"""Passes over the loop IR of a kernel, each closer to the machine.

Each pass is one module with a frozen value that has a `name` and an `apply`.
"""

from retune.compiler.lower.passes.base import LoopPass
from retune.compiler.lower.passes.dot_products import DotProducts
from retune.compiler.lower.passes.flip_signedness import FlipSignedness
from retune.compiler.lower.passes.legalize_loops import LegalizeLoops
from retune.compiler.lower.passes.limit_code import LimitCode
from retune.compiler.lower.passes.move_locals import MoveLocals
from retune.compiler.lower.passes.pack_constants import PackConstants
from retune.compiler.lower.passes.pack_inside import PackInside
from retune.compiler.lower.passes.partition_loops import PartitionLoops
from retune.compiler.lower.passes.register_tiles import RegisterTiles
from retune.compiler.lower.passes.reuse_locals import ReuseLocals
from retune.compiler.lower.passes.simplify_indices import SimplifyIndices
from retune.compiler.lower.passes.unroll_locals import UnrollLocals
from retune.compiler.lower.passes.vector_reductions import VectorReductions
from retune.compiler.lower.passes.vectorize_plain import VectorizePlain
from retune.compiler.lower.passes.widen_buffers import WidenBuffers
from retune.compiler.lower.passes.widen_factors import WidenFactors

__all__ = [
    "DotProducts",
    "FlipSignedness",
    "LegalizeLoops",
    "LimitCode",
    "LoopPass",
    "MoveLocals",
    "PackConstants",
    "PackInside",
    "PartitionLoops",
    "RegisterTiles",
    "ReuseLocals",
    "SimplifyIndices",
    "UnrollLocals",
    "VectorReductions",
    "VectorizePlain",
    "WidenBuffers",
    "WidenFactors",
]
