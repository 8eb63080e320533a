"""Lowers a matrix product on tensor cores to the loop IR of a kernel whose warps multiply fragments.

A warp's part of the product is in the registers of its 32 lanes. The lane that reads an element must be the lane that
holds it, otherwise the program is rejected. Shared factors are stored in full tiles: where a tile extends past its
matrix it holds zeros.

    before: for k: (shared a, b: a = …; b = …; for k i j: tensorize i j k: c[i, j] += a[i, k] * b[k, j])
    after:  c = 0; for k: (shared a, b: a = …; b = …; lane: for k: (fa = a[…]; fb = b[…]; for i j: c[i, j] += fa * fb))
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.affine import affine
from retune.compiler.ir.expr import Binary, Buffer, Cast, Expr, Load, Var, const, select
from retune.compiler.ir.interval import Ranges, as_index
from retune.compiler.ir.simplify import divisor, simplify
from retune.compiler.ir.stmt import Allocate, For, LoopFunction, LoopKind, Stmt, Store, block
from retune.compiler.ir.tensor_core import (
    COLUMNS,
    INSTRUCTIONS,
    MATRIX,
    ROWS,
    SUM_ELEMENTS,
    WARP,
    Instruction,
    LoadMatrix,
    Mma,
)
from retune.compiler.ir.visit import substitute
from retune.compiler.lower.gpu.build_kernels import KernelBuilder
from retune.compiler.lower.nests import NestLoop, known_extent, known_extents, loop_var
from retune.compiler.schedule.contraction import KIND, LEFT, RIGHT, depth_is_inner
from retune.compiler.schedule.relations import overrunning
from retune.compiler.schedule.state import Annotation, Attached, FuseRelation, State
from retune.compiler.te.reduction import Reduce
from retune.compiler.te.tensor import ComputeOp, TensorRead

FRAGMENT_LOOPS = 3
"""Over rows, columns and the sum of one instruction; outside of them are two over the fragments of a warp."""


@dataclass(frozen=True, slots=True)
class _Product:
    """A product on tensor cores: `rows` × `columns` fragments a warp; `lane` is the number that the lane must have
    where its sums are read, over the loops of the reading stage.
    """

    kind: str
    rows: int
    columns: int
    lane: Expr

    @property
    def instruction(self) -> Instruction:
        return INSTRUCTIONS[self.kind]


class TensorBuilder(KernelBuilder):
    """The loops of a state for a GPU with tensor cores."""

    # Ordinary loops until `product` puts instructions in their place.
    kinds: ClassVar[Mapping[Annotation, LoopKind]] = {**KernelBuilder.kinds, Annotation.TENSORIZE: LoopKind.SERIAL}

    def __init__(self, state: State) -> None:
        self.products: dict[int, _Product] = {}
        super().__init__(state)

    def make_buffers(self) -> list[tuple[Buffer, ...]]:
        """As for other kernels, but a product's sums are the fragments of a lane."""
        buffers = super().make_buffers()
        for stage_id, stage in enumerate(self.state.stages):
            if any(loop.annotation is Annotation.TENSORIZE for loop in stage.iters):
                product = self.products[stage_id] = self.described_product(stage_id)
                shape = (product.rows, product.columns, SUM_ELEMENTS)
                buffers[stage_id] = (Buffer(stage.op.name, shape, "float32", "local"),)
        return buffers

    def described_product(self, stage_id: int) -> _Product:
        """The tensor-core product of a stage. Raises: LoweringError when its loops are not those of an instruction."""
        stage, name = self.state.stages[stage_id], self.state.stages[stage_id].op.name
        kind = stage.op.attrs.get(KIND)
        if not isinstance(kind, str) or not isinstance(stage.location, Attached):
            raise LoweringError(
                f"{name}: tensor cores do a product of matrices that stands inside the loops of what reads it; make it "
                "one with as_matmul and compute it inside the loop over warps"
            )
        extents = known_extents(
            dict(zip((it.name for it in stage.iters), self.bounds[stage_id].iter_extents, strict=True))
        )
        last = stage.iters[-FRAGMENT_LOOPS - 2 :]
        origins = "".join(iterator.name.split(".")[0] for iterator in last)
        expected = (ROWS, COLUMNS, INSTRUCTIONS[kind].depth)
        tensorized = [iterator.annotation is Annotation.TENSORIZE for iterator in stage.iters]
        sizes = tuple(extents[iterator.name] for iterator in last[2:])
        if sum(tensorized) != FRAGMENT_LOOPS or not all(tensorized[-FRAGMENT_LOOPS:]) or sizes != expected:
            raise LoweringError(
                f"{name}: tensor cores do the three innermost loops, of {', '.join(map(str, expected))} iterations; "
                f"here they would be asked for {', '.join(iterator.name for iterator in last[2:])} of "
                f"{', '.join(map(str, sizes))}"
            )
        if origins != "mnmnk":
            raise LoweringError(
                f"{name}: the innermost loops must be over fragments of m, of n, then over m, n and k inside of them"
            )
        return _Product(kind, extents[last[0].name], extents[last[1].name], self.lane_of(stage.location.stage))

    def lane_of(self, stage_id: int) -> Expr:
        """The number of the lane over the loops of a stage that are bound to threadIdx.x; -1 without any."""
        stage = self.state.stages[stage_id]
        bound = [loop.name for loop in stage.iters if loop.annotation is Annotation.THREAD_X]
        parts = {r.fused: r.parts for r in stage.relations if isinstance(r, FuseRelation)}
        lane: Expr = const(0)
        sizes = known_extents(self.bounds[stage_id].sizes)
        for name in (part for loop in bound for part in parts.get(loop, (loop,))):
            lane = lane * sizes[name] + loop_var((stage_id, name))
        return lane if bound else const(-1)

    def buffer_indices(self, stage_id: int, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The indices of an element in the stage's buffer; of a product's sums in the buffer of their lane."""
        if stage_id not in self.products:
            return super().buffer_indices(stage_id, indices)
        product, ranges = self.products[stage_id], self.ranges()

        def known(expr: Expr) -> Expr:
            return as_index(affine(simplify(expr, ranges)))

        row, column = indices[1:]
        inner_row, inner_column = known(row % ROWS), known(column % COLUMNS)
        # PTX ISA, accumulators of mma.m16n8: lane 4 r + c / 2 holds row r of each 8 x 8 matrix, two columns.
        lane = known(known(inner_row % MATRIX) * 4 + known(inner_column // 2))
        if affine(lane) != affine(product.lane):
            raise LoweringError(
                f"{self.state.stages[stage_id].op.name}: its element {row}, {column} is read in lane {product.lane} of "
                f"the warp, but it lies in lane {lane}; split the loops over a fragment by (2, 8) and (4, 2) and bind "
                "the parts of 8 and 4, fused, to threadIdx.x"
            )
        # Each lane holds four sums: two adjacent columns of the upper half, then of the lower.
        element = known(inner_row // MATRIX) * 2 + known(inner_column % 2)
        return known(row // ROWS), known(column // COLUMNS), as_index(affine(element))

    def ranges(self) -> Ranges:
        ranges: dict[Var, tuple[int, int]] = {}
        for bounds in self.bounds.values():
            ranges.update((loop_var(loop.key), (0, known_extent(loop.extent) - 1)) for loop in bounds.own)
        return ranges

    def describe(self, name: str, body: Stmt) -> LoopFunction:
        """The kernel called `name` with `body` and the depths of its pipelines."""
        function = super().describe(name, body)
        pipelines = []
        for number, stage in enumerate(self.state.stages):
            if stage.pipeline is not None:
                pipelines.append((loop_var((number, stage.pipeline[0])).name, known_extent(stage.pipeline[1])))
        return replace(function, pipelines=tuple(pipelines))

    def nest(self, stage_id: int) -> Stmt:
        """The loops of one stage with the stages computed inside them."""
        return self.product(stage_id) if stage_id in self.products else super().nest(stage_id)

    def wrap(
        self,
        stage_id: int,
        loops: list[NestLoop],
        leaf: Stmt,
        guards: list[Expr],
        around: tuple[int, Callable[[Stmt], Stmt]] | None,
    ) -> Stmt:
        """The loops around `leaf`; a factor of a product is zero where a guard says that its matrix has ended."""
        name = self.state.stages[stage_id].op.name
        if self.products and name.endswith((LEFT, RIGHT)) and isinstance(leaf, Store):
            running = self.overruns(stage_id)
            ended = [guard for guard in guards if guard not in running]
            # Zeros beyond the matrix add nothing to the sums, so products need no guards.
            guards = [guard for guard in guards if guard in running]
            value = leaf.value
            for guard in ended:
                value = select(guard, value, const(0, value.dtype))
            leaf = Store(leaf.buffer, leaf.indices, value)
        return super().wrap(stage_id, loops, leaf, guards, around)

    def overruns(self, stage_id: int) -> list[Expr]:
        """The conditions under which a split loop is inside of what it was split from."""
        stage = self.state.stages[stage_id]
        values, sizes = self.local_exprs(stage_id), known_extents(self.bounds[stage_id].sizes)
        return [values[name] < size for name, size in overrunning(stage.relations, sizes)]

    def product(self, stage_id: int) -> Stmt:
        """A warp's sums set to 0, and the loops in which fragments are multiplied."""
        stage, product = self.state.stages[stage_id], self.products[stage_id]
        op = stage.op
        assert isinstance(op, ComputeOp), "as_matmul makes computes"
        loops = self.loops_of(stage_id)
        outer, inner = loops[: -FRAGMENT_LOOPS - 2], loops[-FRAGMENT_LOOPS - 2 :]
        self.check_outside(stage_id, len(outer), len(loops))
        absolute = self.points(stage_id, op)[2]
        body = self.value(stage_id, absolute)
        factors = [node.source for node in (body,) if isinstance(node, Reduce)]
        reads = [_uncast(side) for node in factors if isinstance(node, Binary) for side in (node.lhs, node.rhs)]
        names = [read.tensor.op for read in _reads_of(op)]
        inner_depth = [depth_is_inner(each) for each in names if isinstance(each, ComputeOp)]
        fragments = Fragments(product, self.buffers[stage_id][0], inner, stage_id)
        steps = fragments.multiply(reads[0], reads[1], inner_depth)
        return block(fragments.clear(), self.wrap(stage_id, outer, steps, [], None))

    def check_outside(self, stage_id: int, first: int, last: int) -> None:
        """Raises: LoweringError when a stage is computed inside the loops over fragments, from number `first` on."""
        if any(self.state.attached_at(stage_id, level) for level in range(first, last)):
            name = self.state.stages[stage_id].op.name
            raise LoweringError(f"{name}: nothing can be computed inside the loops over fragments; move it out")


def _uncast(expr: Expr) -> Load:
    read = expr.value if isinstance(expr, Cast) else expr
    assert isinstance(read, Load), "as_matmul multiplies what it has gathered"
    return read


def _reads_of(op: ComputeOp) -> list[TensorRead]:
    source = op.body.source if isinstance(op.body, Reduce) else op.body
    sides = (source.lhs, source.rhs) if isinstance(source, Binary) else ()
    factors = [side.value if isinstance(side, Cast) else side for side in sides]
    return [read for read in factors if isinstance(read, TensorRead)]


@dataclass(frozen=True, slots=True)
class Fragments:
    """The innermost loops of a product: over fragments of rows and columns, then over rows, columns and depth."""

    product: _Product
    sums: Buffer
    loops: Sequence[NestLoop]
    stage: int

    def clear(self) -> Stmt:
        element = Var(f"e.s{self.stage}")
        indices = (*self.fragment, element)
        clear = For(element, SUM_ELEMENTS, LoopKind.UNROLL, Store(self.sums, indices, const(0.0)))
        return self.each(self.loops[0], self.each(self.loops[1], clear))

    @property
    def fragment(self) -> tuple[Expr, Expr]:
        """The numbers of a fragment along the rows and the columns."""
        row, column = (loop.var if loop.extent > 1 else const(0) for loop in self.loops[:2])
        return row, column

    def each(self, loop: NestLoop, body: Stmt) -> Stmt:
        """The statement for every fragment along one dimension."""
        return For(loop.var, loop.extent, LoopKind.UNROLL, body) if loop.extent > 1 else body

    def multiply(self, left: Load, right: Load, inner_depth: Sequence[bool]) -> Stmt:
        """One step along the sum: the fragments of both factors loaded, and all pairs multiplied."""
        instruction, lane = self.product.instruction, Var(f"lane.s{self.stage}")
        shapes = (self.product.rows, instruction.left_elements), (self.product.columns, instruction.right_elements)
        left_fragment, right_fragment = (
            Buffer(f"{self.sums.name}.{side}", shape, instruction.dtype, "local")
            for side, shape in zip(("left", "right"), shapes, strict=True)
        )
        row, column = self.fragment
        loads = block(
            self.each(self.loops[0], self.left_loads(left_fragment, left, lane, inner_depth=inner_depth[0])),
            self.right_loads(right_fragment, right, lane, inner_depth=inner_depth[1]),
        )
        zero = const(0)
        step = Mma(
            self.product.kind,
            self.sums,
            (row, column, zero),
            left_fragment,
            (row, zero),
            right_fragment,
            (column, zero),
        )
        body = block(loads, self.each(self.loops[0], self.each(self.loops[1], step)))
        return For(lane, WARP, LoopKind.THREAD_X, Allocate(left_fragment, Allocate(right_fragment, body)))

    def elements(
        self,
        fragment: Buffer,
        number: Expr,
        source: Load,
        lane: Expr,
        position: Callable[[Expr, int], tuple[Expr, Expr]],
        loop_numbers: tuple[int, int],
    ) -> Stmt:
        """A fragment loaded by elements; `position` gives an element's two indices, `loop_numbers` their loops."""
        stores = []
        for element in range(fragment.shape[1]):
            values: dict[Expr, Expr] = dict(
                zip((self.loops[loop].var for loop in loop_numbers), position(lane, element), strict=True)
            )
            stores.append(Store(fragment, (number, const(element)), self.at_values(source, values)))
        return block(*stores)

    def left_loads(self, fragment: Buffer, source: Load, lane: Expr, *, inner_depth: bool) -> Stmt:
        """A fragment: four matrices, two rows of two."""
        instruction, (row, _) = self.product.instruction, self.fragment
        matrix, line = lane // MATRIX, lane % MATRIX
        first, depth = matrix % 2 * MATRIX, matrix // 2 * instruction.row_elements
        first, depth = (first + line, depth) if inner_depth else (first, depth + line)
        at: dict[Expr, Expr] = {self.loops[2].var: first, self.loops[4].var: depth}
        if self.has_matrices(source, at, inner_depth=inner_depth):
            return self.matrices(fragment, row, source, at, 4, transposed=not inner_depth)
        return self.elements(fragment, row, source, lane, instruction.left_position, (2, 4))

    def right_loads(self, fragment: Buffer, source: Load, lane: Expr, *, inner_depth: bool) -> Stmt:
        """All fragments, of two matrices below each other; two fragments in one load if their number is even."""
        instruction, (_, number) = self.product.instruction, self.fragment
        matrix, line, loop = lane // MATRIX, lane % MATRIX, self.loops[1]
        depth = matrix % 2 * instruction.row_elements
        column, depth = (line, depth) if inner_depth else (const(0), depth + line)
        values: dict[Expr, Expr] = {self.loops[3].var: column, self.loops[4].var: depth}
        if not self.has_matrices(source, values, inner_depth=inner_depth):
            return self.each(loop, self.elements(fragment, number, source, lane, instruction.right_position, (4, 3)))
        # `ldmatrix.x4` fills two fragments at once; an odd number takes `.x2`, one by one.
        if self.product.columns % 2:
            return self.each(loop, self.matrices(fragment, number, source, values, 2, transposed=not inner_depth))
        pairs, pair = self.product.columns // 2, Var(f"{loop.var.name}.pair")
        first: Expr = pair * 2 if pairs > 1 else const(0)
        values[loop.var] = first + matrix // 2
        load = self.matrices(fragment, first, source, values, 4, transposed=not inner_depth)
        return For(pair, pairs, LoopKind.UNROLL, load) if pairs > 1 else load

    def has_matrices(self, source: Load, values: Mapping[Expr, Expr], *, inner_depth: bool) -> bool:
        """Whether matrices are loaded: of halves; of float32 where 16-byte aligned rows follow the depth."""
        # `ldmatrix` transposes elements of 16 bits only.
        if self.product.instruction.packed > 1:
            return True
        return inner_depth and source.buffer.scope == "shared" and self.is_aligned(self.at_values(source, values))

    def is_aligned(self, element: Load) -> bool:
        """Whether an element is at a multiple of 16 bytes."""
        position: Expr = const(0)
        for index, extent in zip(element.indices, element.buffer.shape, strict=True):
            position = position * extent + index
        return divisor(position) % self.product.instruction.row_elements == 0

    def matrices(
        self, fragment: Buffer, number: Expr, source: Load, values: Mapping[Expr, Expr], count: int, *, transposed: bool
    ) -> Stmt:
        """Matrices loaded from the rows that lanes point to.

        Raises: LoweringError when rows do not start at multiples of 16 bytes.
        """
        first = self.at_values(source, values)
        # `ldmatrix` faults on rows that are not aligned to 16 bytes.
        if not self.is_aligned(first):
            raise LoweringError(
                f"{self.sums.name}: rows of {source.buffer} do not start at multiples of 16 bytes; align its storage"
            )
        return LoadMatrix(fragment, (number, const(0)), source.buffer, first.indices, count, transposed)

    @staticmethod
    def at_values(source: Load, values: Mapping[Expr, Expr]) -> Load:
        """`source` at other values of some variables."""
        return Load(source.buffer, tuple(as_index(affine(substitute(index, values))) for index in source.indices))
