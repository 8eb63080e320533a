"""Lowers a concrete state to loop IR for CPU code. The passes of a target are one tuple, in order."""

from collections.abc import Collection
from functools import partial

from retune.compiler.core import config
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir import trace
from retune.compiler.ir.dot import Pair
from retune.compiler.ir.stmt import LoopFunction
from retune.compiler.ir.verify import verify
from retune.compiler.lower.build_loops import build_loops
from retune.compiler.lower.passes import LoopPass, pass_name
from retune.compiler.lower.passes.dot_products import group_dot_products
from retune.compiler.lower.passes.flip_signedness import flip_signedness
from retune.compiler.lower.passes.legalize_loops import legalize_loops
from retune.compiler.lower.passes.limit_code import limit_code
from retune.compiler.lower.passes.move_locals import move_locals
from retune.compiler.lower.passes.pack_constants import pack_constants
from retune.compiler.lower.passes.pack_inside import pack_inside
from retune.compiler.lower.passes.partition_loops import partition_loops
from retune.compiler.lower.passes.register_tiles import form_register_tiles
from retune.compiler.lower.passes.reuse_locals import reuse_locals
from retune.compiler.lower.passes.simplify_indices import simplify_indices
from retune.compiler.lower.passes.unroll_locals import unroll_locals
from retune.compiler.lower.passes.vector_reductions import vectorize_reductions
from retune.compiler.lower.passes.vectorize_plain import vectorize_plain
from retune.compiler.lower.passes.widen_buffers import widen_buffers
from retune.compiler.lower.passes.widen_factors import widen_factors
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.state import State

_PACKING: dict[LayoutRewriteOption, tuple[LoopPass, ...]] = {
    LayoutRewriteOption.NO_REWRITE: (),
    LayoutRewriteOption.INSERT_TRANSFORM_STAGE: (pack_constants, pack_inside),
    LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED: (pack_constants,),
}
"""The passes for inputs of free layout."""

PRE_TRANSFORMED = LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED


def cpu_passes(
    hardware: HardwareParams, layout: LayoutRewriteOption = PRE_TRANSFORMED, dots: Collection[Pair] = ()
) -> tuple[LoopPass, ...]:
    """The passes of a CPU with the given vector width; `dots` are the types of its dot-product instructions."""
    width = hardware.vector_unit_bytes
    return (
        simplify_indices,
        # Before packing, so that the steps of a dot product become the innermost digit of the packed layout.
        partial(group_dot_products, native=dots),
        *_PACKING[layout],
        # After dot products, which take 16-bit factors; before the memory of buffers is shared.
        widen_buffers,
        reuse_locals,
        # Before a parallel loop may be cut into parts.
        partial(move_locals, stack_bytes=hardware.stack_bytes),
        partition_loops,
        # After partitioning, which removes guards that would make a vector loop serial.
        partial(legalize_loops, masks=hardware.lane_masks),
        partial(vectorize_plain, vector_bytes=width),
        partial(vectorize_reductions, vector_bytes=width),
        partial(form_register_tiles, vector_bytes=width),
        # Looks for the accumulators of register tiles.
        partial(flip_signedness, native=dots, vector_bytes=width),
        widen_factors,
        partial(unroll_locals, vector_bytes=width),
        # Last, since only now all unrolling is decided.
        limit_code,
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
        function = finish_pass(loop_pass(function), pass_name(loop_pass), checks)
    trace.show(trace.LOOPS, name, "loop IR", lambda: str(function))
    return function


def finish_pass(function: LoopFunction, after: str, checks: bool) -> LoopFunction:
    """The kernel that a pass made, traced if enabled. Raises: LoweringError when `checks` finds it malformed."""
    trace.show(trace.PASSES, function.name, f"after {after}", lambda: str(function))
    if checks:
        verify(function, after)
    return function
