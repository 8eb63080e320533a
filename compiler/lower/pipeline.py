"""Lowers a concrete state to loop IR for CPU code. The passes of a target are one tuple, in order."""

from collections.abc import Collection

from retune.compiler.core import config
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir import trace
from retune.compiler.ir.dot import Pair
from retune.compiler.ir.stmt import LoopFunction
from retune.compiler.ir.verify import verify
from retune.compiler.lower.build_loops import build_loops
from retune.compiler.lower.passes import LoopPass
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
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.state import State

_PACKING: dict[LayoutRewriteOption, tuple[LoopPass, ...]] = {
    LayoutRewriteOption.NO_REWRITE: (),
    LayoutRewriteOption.INSERT_TRANSFORM_STAGE: (PackConstants(), PackInside()),
    LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED: (PackConstants(),),
}
"""The passes for inputs of free layout."""

PRE_TRANSFORMED = LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED


def cpu_passes(
    hardware: HardwareParams, layout: LayoutRewriteOption = PRE_TRANSFORMED, dots: Collection[Pair] = ()
) -> tuple[LoopPass, ...]:
    """The passes of a CPU with the given vector width; `dots` are the types of its dot-product instructions."""
    width = hardware.vector_unit_bytes
    return (
        SimplifyIndices(),
        # Before packing, so that the steps of a dot product become the innermost digit of the packed layout.
        DotProducts(frozenset(dots)),
        *_PACKING[layout],
        # After dot products, which take 16-bit factors; before the memory of buffers is shared.
        WidenBuffers(),
        ReuseLocals(),
        # Before a parallel loop may be cut into parts.
        MoveLocals(hardware.stack_bytes),
        PartitionLoops(),
        # After partitioning, which removes guards that would make a vector loop serial.
        LegalizeLoops(hardware.lane_masks),
        VectorizePlain(width),
        VectorReductions(width),
        RegisterTiles(width),
        # Looks for the accumulators of register tiles.
        FlipSignedness(frozenset(dots), width),
        WidenFactors(),
        UnrollLocals(width),
        # Last, since only now all unrolling is decided.
        LimitCode(),
    )


def lower(
    state: State,
    name: str,
    hardware: HardwareParams,
    layout: LayoutRewriteOption = PRE_TRANSFORMED,
    *,
    dots: Collection[Pair] = (),
    check: bool | None = None,
) -> LoopFunction:
    """The kernel `name` of a concrete state, ready for code generation.

    `layout` decides about inputs of free layout, `dots` are the factor types of the target's dot-product instructions;
    `check` verifies the kernel after every pass, by default as RETUNE_CHECK says.
    Raises: ScheduleError; LoweringError, which names the pass whose result is malformed.
    """
    checks = config.checks_ir() if check is None else check
    function = finish_pass(build_loops(state, name), "build-loops", checks)
    for loop_pass in cpu_passes(hardware, layout, dots):
        function = finish_pass(loop_pass.apply(function), loop_pass.name, checks)
    trace.show(trace.LOOPS, name, "loop IR", lambda: str(function))
    return function


def finish_pass(function: LoopFunction, after: str, checks: bool) -> LoopFunction:
    """The kernel that a pass made, traced if enabled. Raises: LoweringError when `checks` finds it malformed."""
    trace.show(trace.PASSES, function.name, f"after {after}", lambda: str(function))
    if checks:
        verify(function, after)
    return function
