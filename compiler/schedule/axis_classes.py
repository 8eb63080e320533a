"""Classes of axes with symbolic extents: the axes of several operations that run together.

An axis of a reader and the axis of the stage that it reads at this point are in one class. A class is *parallel* if its
axes are spatial, every computed tensor is read along them at the reader's own point, and every result and reduction has
it: then the results of some points of the class depend on nothing computed at others, and nothing is reduced twice.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import permutations
from operator import attrgetter

from retune.compiler.core.errors import ScheduleError
from retune.compiler.ir.dims import Dim
from retune.compiler.ir.expr import Expr, Var
from retune.compiler.ir.visit import walk
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.te.reduction import Axis, AxisKind
from retune.compiler.te.symbols import rebuild
from retune.compiler.te.tensor import ComputeOp, Operation, PlaceholderOp, Tensor, TensorRead, post_order, reads_of

Point = tuple[ComputeOp, str]
"""An axis of an operation, by its name."""


@dataclass(frozen=True, slots=True, eq=False)
class AxisClass:
    """The axes of one class; its `number` tells it from the others of a program."""

    number: int
    extent: int | None
    """None where the axes have several extents."""
    points: frozenset[Point]
    is_parallel: bool


@dataclass(frozen=True, eq=False)
class SymbolicProgram:
    """Inputs and results with symbolic extents, and the classes of all axes whose extent is symbolic, and of parallel
    axes around them.
    """

    tensors: tuple[Tensor, ...]
    classes: tuple[AxisClass, ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor], *, keeps_rows: bool) -> "SymbolicProgram":
        """The program of `tensors`, with neighboring parallel axes joined where all tensors have both. A stage with a
        symbolic axis along which it is not read point by point is computed where it is read, unless the program
        `keeps_rows`: then a block may hold rows of it.
        """
        program = cls(tuple(tensors), tuple(_classes(tensors)))
        wide = program.wide_stages()
        if wide and not keeps_rows:
            tensors = rebuild(tensors, attrgetter("shape"), lambda _: lambda _: None, inlined=wide)
            program = cls(tuple(tensors), tuple(_classes(tensors)))
        elif wide and sum(bool(op.reduce_axes) for op in program.computed) > 1:
            program = cls(tuple(tensors), tuple(_classes(tensors, has_rows=True)))
        # Ends: every round has a class less.
        while (joined := _with_joined_axes(program)) is not None:
            program = cls(tuple(joined), tuple(_classes(joined)))
        return program

    @cached_property
    def computed(self) -> tuple[ComputeOp, ...]:
        return tuple(op for op in post_order(self.tensors) if isinstance(op, ComputeOp))

    def axis(self, stage: int, number: int) -> tuple[ComputeOp, Axis]:
        """An axis of a stage of the compute graph of `tensors`, reduce axes after the others, and the stage. Raises:
        ScheduleError if there is none.
        """
        ops = ComputeDAG(self.tensors).ops
        op = ops[stage] if 0 <= stage < len(ops) else None
        axes = (*op.axes, *op.reduce_axes) if isinstance(op, ComputeOp) else ()
        if not isinstance(op, ComputeOp) or not 0 <= number < len(axes):
            raise ScheduleError(f"there is no axis {number} of stage {stage}")
        return op, axes[number]

    def class_of(self, op: ComputeOp, axis: Expr) -> AxisClass | None:
        """The class of an axis of `op`; None for any other expression, and for an axis of a fixed extent."""
        return self._class_at.get((op, axis.name)) if isinstance(axis, Axis) else None

    @cached_property
    def _class_at(self) -> dict[Point, AxisClass]:
        return {point: known for known in self.classes for point in known.points}

    def axis_rule(
        self, new_axis: Callable[[Axis, AxisClass], Axis]
    ) -> Callable[[ComputeOp], Callable[[Expr], Axis | None]]:
        """The rules of `rebuild` that put `new_axis(axis, its class)` in place of each axis of a class."""

        def rule(op: ComputeOp, node: Expr) -> Axis | None:
            known = self.class_of(op, node)
            return new_axis(node, known) if isinstance(node, Axis) and known is not None else None

        return lambda op: partial(rule, op)

    def parallel_class(self, op: ComputeOp, axis: Expr) -> AxisClass | None:
        known = self.class_of(op, axis)
        return known if known is not None and known.is_parallel else None

    def wide_stages(self) -> set[Operation]:
        """Stages between inputs and results that have an axis of a class that is not parallel, except reductions."""
        results = {tensor.op for tensor in self.tensors}
        return {
            op
            for op in self.computed
            if op not in results and not op.reduce_axes and any(self._is_wide(op, axis) for axis in op.axes)
        }

    @property
    def keeps_rows(self) -> bool:
        """Whether anything between inputs and results has an axis of a class that is not parallel."""
        results = {tensor.op for tensor in self.tensors}
        return any(self._is_wide(op, axis) for op in self.computed if op not in results for axis in op.axes)

    def _is_wide(self, op: ComputeOp, axis: Axis) -> bool:
        known = self.class_of(op, axis)
        return known is not None and not known.is_parallel

    def views(self, tensor: Tensor) -> tuple[AxisClass | None, ...]:
        """For each dimension the parallel class at whose point it is always read; None for other dimensions."""
        if isinstance(tensor.op, ComputeOp):
            return tuple(self.parallel_class(tensor.op, axis) for axis in tensor.op.axes)
        return self._input_views.get(tensor, (None,) * len(tensor.shape))

    @cached_property
    def _input_views(self) -> dict[Tensor, tuple[AxisClass | None, ...]]:
        readers: dict[Tensor, list[set[AxisClass | None]]] = {}
        for op in self.computed:
            for source, indices in reads_of(op):
                dims = readers.setdefault(source, [set() for _ in indices])
                for dim, index in zip(dims, indices, strict=True):
                    dim.add(self.parallel_class(op, index))
        return {
            tensor: tuple(next(iter(classes)) if len(classes) == 1 else None for classes in dims)
            for tensor, dims in readers.items()
        }


def _classes(tensors: Sequence[Tensor], *, has_rows: bool = False) -> Iterator[AxisClass]:
    """The classes of the axes. If blocks hold whole rows, `has_rows`, they are outside of all axes but the last."""
    computed = [op for op in post_order(tensors) if isinstance(op, ComputeOp)]
    results = {tensor.op for tensor in tensors if isinstance(tensor.op, ComputeOp)}
    axes = {(op, axis.name): axis for op in computed for axis in (*op.axes, *op.reduce_axes)}
    group_of: dict[Point, set[Point]] = {point: {point} for point in axes}
    mixed: set[Point] = set()
    for op in computed:
        for source, indices in reads_of(op):
            if not isinstance(source.op, ComputeOp):
                continue
            for axis, index in zip(source.op.axes, indices, strict=True):
                if isinstance(index, Axis):
                    _join(group_of, (source.op, axis.name), (op, index.name))
                else:
                    mixed.add((source.op, axis.name))
    # What is reduced would be reduced again for every block of a class that it does not have.
    needed = results | {op for op in computed if op.reduce_axes}
    groups = []
    for points in {id(group): group for group in group_of.values()}.values():
        extents = {str(axes[point].extent): axes[point].extent for point in points}
        ops = [op for op, _ in points]
        is_parallel = (
            all(axes[point].kind is AxisKind.SPATIAL for point in points)
            and points.isdisjoint(mixed)
            and len(extents) == 1
            and len(set(ops)) == len(ops)
            and needed <= set(ops)
        )
        groups.append((frozenset(points), extents, is_parallel))
    parallel = {point for points, _, is_parallel in groups for point in points if is_parallel}
    outer = _outer_axes(computed, parallel, has_rows=has_rows)
    number = 0
    for members, extents, is_parallel in groups:
        if any(isinstance(extent, Dim) for extent in extents.values()) or (is_parallel and members & outer):
            yield AxisClass(number, extents.popitem()[1] if len(extents) == 1 else None, members, is_parallel)
            number += 1


def _outer_axes(computed: Sequence[ComputeOp], parallel: Collection[Point], *, has_rows: bool) -> set[Point]:
    """The axes of a fixed extent outside of a symbolic axis of the last result, both `parallel`, or outside of its last
    axis: blocks are outside of them, so they have one point in a block. Neighbors in memory stay together.
    """
    if not computed:
        return set()
    last = computed[-1]
    neighbors = {indices[-1] for op in computed for _, indices in reads_of(op) if indices}
    symbolic = [number for number, axis in enumerate(last.axes) if is_symbolic(axis) and (last, axis.name) in parallel]
    outside = last.axes[:-1] if has_rows else last.axes[: max(symbolic, default=0)]
    return {(last, axis.name) for axis in outside if (last, axis.name) in parallel and axis not in neighbors}


def is_symbolic(axis: Axis) -> bool:
    return isinstance(axis.extent, Dim)


def _join(group_of: dict[Point, set[Point]], first: Point, second: Point) -> None:
    union = group_of[first] | group_of[second]
    group_of.update(dict.fromkeys(union, union))


# Joined axes

_DROPPED = Var("dropped")


def _with_joined_axes(program: SymbolicProgram) -> list[Tensor] | None:
    """The tensors with two neighboring parallel classes merged, as of batch and length; None if there are no such two.

    before: y[b, n, c] = x[b, n, c] * w[c]        after: y[b*n, c] = x[b*n, c] * w[c]
    """
    parallel = [known for known in program.classes if known.is_parallel]
    for outer, inner in permutations(parallel, 2):
        pairs = _pairs(program, outer, inner)
        if pairs is not None and outer.extent is not None and inner.extent is not None:
            return _join_axes(program, outer, inner, pairs, outer.extent * inner.extent)
    return None


def _pairs(program: SymbolicProgram, outer: AxisClass, inner: AxisClass) -> dict[PlaceholderOp, int] | None:
    """The dimensions of inputs that are always read at the points of `outer`, followed by `inner`; None if any axis of
    the two is used without the other.
    """
    dims: dict[PlaceholderOp, set[int | None]] = {}
    for op in program.computed:
        own = [program.class_of(op, axis) for axis in op.axes]
        if not _are_neighbors(own, outer, inner):
            return None
        uses = 0
        for source, indices in reads_of(op):
            known = [program.class_of(op, index) for index in indices]
            if not _are_neighbors(known, outer, inner):
                return None
            first = known.index(outer) if outer in known else None
            uses += 0 if first is None else 2
            if isinstance(source.op, PlaceholderOp):
                dims.setdefault(source.op, set()).add(first)
        joined = [axis for axis, known in zip(op.axes, own, strict=True) if known in (outer, inner)]
        if sum(node in joined for node in walk(op.body) if isinstance(node, Axis)) != uses:
            return None  # in an index that is no axis, or as a value
    pairs: dict[PlaceholderOp, int] = {}
    for read, firsts in dims.items():
        if len(firsts) > 1:
            return None
        first = firsts.pop()
        if first is None:
            continue
        extents = tuple(map(str, read.shape[first : first + 2]))
        if extents != (str(outer.extent), str(inner.extent)):
            return None
        pairs[read] = first
    return pairs


def _are_neighbors(known: Sequence[AxisClass | None], outer: AxisClass, inner: AxisClass) -> bool:
    """Whether neither class is there, or both, once, one after the other."""
    present = [item for item in known if item in (outer, inner)]
    return not present or (present == [outer, inner] and known.index(inner) == known.index(outer) + 1)


def _join_axes(
    program: SymbolicProgram, outer: AxisClass, inner: AxisClass, pairs: dict[PlaceholderOp, int], extent: int
) -> list[Tensor]:
    def shape_of(op: PlaceholderOp) -> tuple[int, ...]:
        if op not in pairs:
            return op.shape
        first = pairs[op]
        return (*op.shape[:first], extent, *op.shape[first + 2 :])

    def rule_of(op: ComputeOp) -> Callable[[Expr], Expr | None]:
        def rule(node: Expr) -> Expr | None:
            match node:
                case Axis() if (known := program.class_of(op, node)) in (outer, inner):
                    return _DROPPED if known is inner else Axis(node.name, extent, node.kind)
                case TensorRead(tensor, indices) if any(index is _DROPPED for index in indices):
                    return TensorRead(tensor, tuple(index for index in indices if index is not _DROPPED))
            return None

        return rule

    return rebuild(program.tensors, shape_of, rule_of)
