"""Lowers programs with symbolic extents to one kernel for all values of their symbols.

A kernel covers its results with blocks of fixed extents, see `schedule/blocks.py`. Each block is lowered as any program
of fixed extents, and then placed in the whole arrays. Loops over axes that are no part of a block, as of a sum over
symbolic terms, get their extents at the end.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from retune.compiler.core.errors import ScheduleError
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir.dot import Pair
from retune.compiler.ir.rewrite import find_stmts, rewrite
from retune.compiler.ir.stmt import Allocate, For, LoopFunction, Stmt, block
from retune.compiler.ir.verify import verify
from retune.compiler.lower.block_placement import Region, in_parallel, in_series, placed, regions_of, with_shapes
from retune.compiler.lower.build_loops import build_loops
from retune.compiler.lower.passes import LoopPass
from retune.compiler.lower.pipeline import cpu_passes
from retune.compiler.lower.symbolic_loops import bounded
from retune.compiler.schedule.axis_classes import AxisClass, SymbolicProgram
from retune.compiler.schedule.blocks import MARK, MOST, block_of, class_in, stand_in
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.default.product_tiles import row_axis_of
from retune.compiler.schedule.state import State, replay
from retune.compiler.schedule.steps import Split, Step
from retune.compiler.te.symbols import symbols_of
from retune.compiler.te.tensor import RANKS, SCATTERS, ComputeOp, PlaceholderOp, Tensor, post_order

_COLUMNS = 64
"""Points of a block along the last axis of the results: a few vectors on every machine."""
_COLUMN_RATIO = 4
"""The ratio of blocks of columns to the next smaller blocks: each size is another part of the code."""
_MANY_ROWS = 840
"""Rows that the heights of all register tiles divide."""
_MARGIN = 16 << 10
"""Bytes of the stack that code generation and LLVM may use beside the buffers of a block."""
_FAR = MOST >> 10
"""More iterations than any loop of a block has, unless it is a part of one over a symbolic axis."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Why there is no kernel for all values of a program's symbols: it has to be compiled for each shape."""

    reason: str


def lower_symbolic(
    tensors: Sequence[Tensor],
    name: str,
    hardware: HardwareParams,
    layout: LayoutRewriteOption = LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED,
    *,
    dots: Collection[Pair] = (),
) -> LoopFunction | Unsupported:
    """The kernel `name` of tensors with symbolic extents, in default schedules; its parameters are the inputs and then
    the results, in the order of a compute graph, and its `symbols` are those of the extents. `layout` and `dots` are as
    in `lower`.

    A value says why a program is not taken. Raises: DefinitionError, LoweringError as for fixed extents.
    """
    if not all(isinstance(op, ComputeOp | PlaceholderOp) for op in post_order(tensors)):
        return Unsupported(f"{name}: it calls a function or makes steps")
    program = SymbolicProgram.of(tensors)
    reason = _refusal(program)
    if reason:
        return Unsupported(f"{name}: {reason}")
    builder = _Builder(program, name, hardware, cpu_passes(hardware, layout, dots))
    try:
        return builder.function()
    except _UnsupportedError as error:
        return Unsupported(f"{name}: {error}")


class _UnsupportedError(Exception):
    """Ends the lowering of a program that no symbolic kernel is made for."""


def _refusal(program: SymbolicProgram) -> str:
    """What keeps a program from symbolic kernels whatever its schedule; empty if nothing does."""
    names = [tensor.name for tensor in program.tensors]
    if len(set(names)) < len(names):
        return "two of its arguments have one name"
    axes = [axis.name for op in program.computed for axis in (*op.axes, *op.reduce_axes)]
    if any(MARK in text for text in axes):
        return f"an axis has {MARK} in its name"
    if any(SCATTERS in op.attrs or RANKS in op.attrs for op in program.computed):
        return "it scatters or ranks elements"
    mixed = next((known for known in program.classes if known.extent is None), None)
    if mixed is not None:
        return f"the axis {min(axis for _, axis in mixed.points)} runs over arrays of several extents"
    return ""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How blocks cover the results: in parallel along the classes `outer`, in turn along `inner`."""

    outer: Sequence[AxisClass]
    inner: AxisClass | None
    columns: AxisClass | None
    """The class along which results are neighbors in memory."""
    sizes: Mapping[AxisClass, int]
    steps: Sequence[Step]
    """The steps of a full block."""
    hardware: HardwareParams
    """Without cores if only blocks are shared among threads, not their loops."""

    @property
    def has_strips(self) -> bool:
        """Whether the parallel loop of a block is shared among threads, too."""
        return self.hardware.num_cores != 0

    def regions_of(self, known: AxisClass) -> list[Region]:
        return list(regions_of(known, self.sizes[known], _COLUMN_RATIO if known is self.columns else 2))


class _Builder:
    """Lowers the blocks of one program."""

    def __init__(
        self, program: SymbolicProgram, name: str, hardware: HardwareParams, passes: Sequence[LoopPass]
    ) -> None:
        self.program = program
        self.name = name
        self.hardware = hardware
        self.passes = passes
        self.parallel = [known for known in program.classes if known.is_parallel]
        self.stand_ins: dict[str, int] = {}
        self.parts: list[LoopFunction] = []

    def function(self) -> LoopFunction:
        """The kernel. Raises: _UnsupportedError."""
        plan = self._plan()
        if not plan.outer:
            strips, body = self._block(plan, ())
            return self._finish(body if strips is None else replace(strips, body=body))
        regions = {known: plan.regions_of(known) for known in plan.outer}
        # The class with several sizes of blocks, such as the rows of a tile; else the last.
        several = [known for known in plan.outer if len(regions[known]) > 1] or plan.outer[-1:]
        if len(several) > 1:
            raise _UnsupportedError("several axes of its results have blocks of several sizes")
        around = [regions[known][0] for known in plan.outer if known not in several]
        shares = [(region, *self._block(plan, (*around, region))) for region in regions[several[0]]]
        blocks = [(region, body) for region, _, body in shares]
        loops = [(None, 0) if strips is None else (strips.var, strips.extent) for _, strips, _ in shares]
        if len(set(loops)) == 1:
            return self._finish(in_parallel(around, blocks, shares[0][1], 0))
        parts = (
            in_parallel(around, [(region, body)], strips, number)
            for number, (region, strips, body) in enumerate(shares)
        )
        return self._finish(block(*parts))

    def _block(self, plan: _Plan, outer: Sequence[Region]) -> tuple[For | None, Stmt]:
        """What a block of some regions computes, and the parallel loop around it, if any."""
        if plan.inner is None:
            return placed(self._lower(plan, outer), self.program, has_strips=plan.has_strips)
        series = []
        for region in plan.regions_of(plan.inner):
            _, body = placed(self._lower(plan, (*outer, region)), self.program, has_strips=False)
            series.append(in_series(region, body, len(self.parts)))
        return None, block(*series)

    def _finish(self, body: Stmt) -> LoopFunction:
        """The kernel of this body. Raises: _UnsupportedError."""
        if len({part.packings for part in self.parts}) > 1:
            raise _UnsupportedError("its blocks read a constant in several layouts")
        symbols = symbols_of(self.program.tensors)
        function = replace(self.parts[0], body=body, workspace=(), symbols=symbols)
        verify(function, "placing blocks")
        return function

    def _plan(self) -> _Plan:
        """How blocks cover the results."""
        (*_, last) = self.program.computed
        columns = self.program.parallel_class(last, last.axes[-1]) if last.axes else None
        sizes = {known: _COLUMNS if known is columns else 1 for known in self.parallel}
        rows = self._rows(sizes)
        if rows is not None:
            probe = default_steps(self._dag({**sizes, rows: _MANY_ROWS}), self.hardware)
            splits = [step for step in probe if isinstance(step, Split) and step.extent == _MANY_ROWS]
            heights = [length for step in splits for length in step.lengths if isinstance(length, int)]
            sizes[rows] = max(heights, default=1)
        own = [self.program.parallel_class(last, axis) for axis in last.axes]
        outer = [known for known in own if known is not None]
        reduces = any(op.reduce_axes for op in self.program.computed)
        # Little work a block: where a block is, is computed for all blocks along the last class together.
        inner = outer.pop() if len(outer) > 1 and (columns is not None or not reduces) else None
        shares = self.hardware if rows is not None and inner is None else replace(self.hardware, num_cores=0)
        return _Plan(outer, inner, columns, sizes, default_steps(self._dag(sizes), shares), shares)

    def _rows(self, sizes: Mapping[AxisClass, int]) -> AxisClass | None:
        """The class along which a product reads the same elements of a factor, if blocks have one point of it yet."""
        state = State.initial(self._dag({known: max(size, 2) for known, size in sizes.items()}))
        for stage_id, stage in enumerate(state.stages):
            number = row_axis_of(state, stage_id)
            if number is not None and number >= 0 and isinstance(stage.op, ComputeOp):
                known = class_in(stage.op.axes[number].name, self.program.classes)
                if known is not None and sizes.get(known) == 1:
                    return known
        return None

    def _dag(self, sizes: Mapping[AxisClass, int]) -> ComputeDAG:
        return ComputeDAG(block_of(self.program, sizes, self.stand_ins))

    def _lower(self, plan: _Plan, regions: Sequence[Region]) -> LoopFunction:
        """The loops of a block relative to its origin. Raises: _UnsupportedError."""
        dag = self._dag({region.known: region.size for region in regions})
        try:
            state = replay(dag, plan.steps)
        except ScheduleError:  # the steps of full blocks may split what a smaller block does not have
            state = replay(dag, default_steps(dag, plan.hardware))
        function = build_loops(state, self.name)
        # Whole arrays already here: no pass may take a block of a result for a dense array.
        whole = {tensor.name: self._standing_in(tensor) for tensor in self.program.tensors}
        function = with_shapes(function, whole)
        for loop_pass in self.passes:
            function = loop_pass.apply(function)
        body = rewrite(function.body, {For: lambda loop: bounded(loop, self.program.classes)})
        scratch = [scope.buffer for scope in find_stmts(Allocate, body) if scope.buffer.scope == "local"]
        if sum(buffer.nbytes for buffer in (*scratch, *function.workspace)) > self.hardware.stack_bytes - _MARGIN:
            raise _UnsupportedError("the intermediate results of a block do not fit the stack of a thread")
        if any(isinstance(loop.extent, int) and loop.extent >= _FAR for loop in find_stmts(For, body)):
            raise _UnsupportedError("a loop over a symbolic axis is cut in a way that has no symbolic form")
        shapes = {tensor.name: tensor.shape for tensor in self.program.tensors}
        self.parts.append(with_shapes(replace(function, body=body), shapes))
        return self.parts[-1]

    def _standing_in(self, tensor: Tensor) -> tuple[int, ...]:
        return tuple(stand_in(extent, self.stand_ins) for extent in tensor.shape)
