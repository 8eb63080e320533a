"""Sketch rules that end the derivation, since they place every stage: blocks of rows, and Winograd convolutions.

Two products with a reduction of rows between them, as in attention, are computed in blocks of rows.

A block of a Winograd convolution is some tiles of the result and some of its channels. Its products are inside the
loops over blocks, in a local buffer, tiled in registers like any matrix product. They are transformed back tile by tile
into the result, together with its elementwise consumers. The transformed input is computed in advance, or for the tiles
of a block while the loop over its channels runs. Padding is a stage of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from retune.compiler.ops.winograd import TRANSFORMED
from retune.compiler.schedule.default.cpu import inlined_by_default
from retune.compiler.schedule.default.row_blocks import BlockTiles, find_row_blocks, placed_in_blocks
from retune.compiler.schedule.state import Annotation, IterKind, State
from retune.compiler.schedule.steps import Annotate, ComputeAt, ComputeInline, FollowSplit, Reorder, Split, Step
from retune.compiler.search.rules.base import SketchContext, Verdict
from retune.compiler.te.tensor import ComputeOp


@dataclass(frozen=True, slots=True)
class BlocksOfRows:
    """Compute all rows of a block, from the first product to the second, before the next block.

    before: for i: for j: for k: s[i, j] += …;  for i: for j: p[i, j] = …;  for i: for n: for j: o[i, n] += …
    after:  for i.0: (for j.0 i.1 k i.2 j.1: s += …;  for i.1 j: p = …;  for n.0 i.1 j i.2 n.1: o += …)
    """

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:  # noqa: ARG002
        """APPLY_AND_STOP for the last stage of a graph with blocks of rows that fit a cache."""
        is_first = stage == len(state.stages) - 1 and not state.steps
        return Verdict.APPLY_AND_STOP if is_first and find_row_blocks(state.dag) is not None else Verdict.SKIP

    def expand(self, context: SketchContext, state: State, stage: int) -> Iterator[tuple[State, int]]:  # noqa: ARG002
        """The state with the rows of a block and both register tiles left open."""
        blocks = find_row_blocks(state.dag)
        assert blocks is not None, "the rule applies"
        yield placed_in_blocks(inlined_by_default(state.dag, {blocks.left}), blocks, BlockTiles()), -1


_LEVELS = 3
_TILES = ("h", "w")


@dataclass(frozen=True, slots=True)
class TransformedConvolution:
    """Compute a transformed convolution by blocks of tiles and channels.

    before: for p: v = B'd;  for p, co: m += v * u;  for p, co: y = A'm
    after:  for p.0: v = B'd;  for co.0: for p.0: (for co.1 p.1 ci p.2 co.2: m += v * u); for p.1 co.1: y = A'm
    """

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:  # noqa: ARG002
        """APPLY_AND_STOP for the last stage of a graph that ends in such a convolution and elementwise stages."""
        last = len(state.stages) - 1
        if stage != last or state.steps:
            return Verdict.SKIP
        result = _result(state)
        if result is None:
            return Verdict.SKIP
        follows = [other for other in state.stages[result:] if other.is_compute]
        plain = all(not other.has_reduce_iter and other.shape == follows[0].shape for other in follows)
        return Verdict.APPLY_AND_STOP if plain and set(state.dag.output_ids) == {last} else Verdict.SKIP

    def expand(self, context: SketchContext, state: State, stage: int) -> Iterator[tuple[State, int]]:
        """The transformed input computed in advance, with the channels of the result outermost or with its tiles; or
        computed for the tiles of a block.
        """
        # Only float32 convolutions are transformed.
        lanes = max(1, context.hardware.vector_unit_bytes // 4)
        for order in ("co.0 {z}h.0.0 w.0.0", "{z}h.0.0 w.0.0 co.0"):
            blocked = _Sketch(_inline(state), stage).blocks(order, lanes)
            yield blocked.input_transform(lanes).state, -1
            if order.endswith("co.0"):
                inside = blocked.input_transform(lanes)
                inside.put(ComputeAt(inside.number("data_pack"), stage, inside.loop(stage, "w.0.0")))
                yield inside.state, -1


def _result(state: State) -> int | None:
    """The final stage of the transformed convolution."""
    numbers = [
        number
        for number, stage in enumerate(state.stages)
        if isinstance(stage.op, ComputeOp) and stage.op.attrs.get(TRANSFORMED)
    ]
    return numbers[0] if len(numbers) == 1 else None


def _inline(state: State) -> State:
    """Inline the stages from the convolution's result on, except the last, into the last."""
    first = _result(state)
    for stage in range(len(state.stages) - 2, -1 if first is None else first - 1, -1):
        if state.stages[stage].is_compute:
            state = state.apply(ComputeInline(stage))
    return state


@dataclass(slots=True)
class _Sketch:
    """A mutable state. The loops of the last stage `last` are named n, h, w and co, with their parts, and z if the
    result has three spatial dimensions.
    """

    state: State
    last: int

    def copy(self) -> "_Sketch":
        return _Sketch(self.state, self.last)

    @property
    def depth(self) -> tuple[str, ...]:
        """The loop over the first of three spatial dimensions, if there are three."""
        return ("z",) * (len(self.state.stages[self.last].op.shape) - 4)

    def put(self, step: Step) -> None:
        self.state = self.state.apply(step)

    def number(self, name: str) -> int:
        return next(number for number, stage in enumerate(self.state.stages) if stage.op.name == name)

    def loop(self, stage: int, name: str) -> int:
        return self.names(stage).index(name)

    def names(self, stage: int) -> list[str]:
        """The loops of a stage; the last stage's under the names of this class."""
        described = self.state.stages[stage]
        names = [iterator.name for iterator in described.iters]
        if stage != self.last or not isinstance(described.op, ComputeOp):
            return names
        known = dict(zip((axis.name for axis in described.op.axes), ("n", *self.depth, "h", "w", "co"), strict=True))
        return [".".join([known[name.split(".")[0]], *name.split(".")[1:]]) for name in names]

    def split(self, stage: int, name: str, lengths: tuple[int | None, ...]) -> int:
        """Split a loop; return the number of the step."""
        at = self.loop(stage, name)
        extent = self.state.stages[stage].iters[at].extent
        self.put(Split(stage, at, extent if isinstance(extent, int) else 0, lengths))
        return len(self.state.steps) - 1

    def reorder(self, stage: int, order: str) -> None:
        names = self.names(stage)
        self.put(Reorder(stage, tuple(names.index(name) for name in order.split())))

    def unroll(self, stage: int, *names: str) -> None:
        for name in names:
            self.put(Annotate(stage, self.loop(stage, name), int(Annotation.UNROLL)))

    def with_depth(self, order: str, loops: str) -> str:
        """`order` with `loops` in place of `{z}` where the result has three spatial dimensions."""
        return order.format(z=f"{loops} " if self.depth else "")

    def blocks(self, order: str, lanes: int) -> "_Sketch":
        """Reorder the loops over blocks of the result, with the products and the inverse transform inside."""
        last, products, back = self.last, self.number("bgemm"), self.number("inverse_rows")
        tile = self.state.stages[back].op.shape[0]
        sources = {}
        for name in _TILES:
            self.split(last, name, (tile,))
            sources[f"t{name}"] = self.split(last, f"{name}.0", (None,) * (_LEVELS - 1))
        for name in (*self.depth, "co"):
            sources[name] = self.split(last, name, (None,) * (_LEVELS - 1))
        order = self.with_depth(order, "z.0")
        self.reorder(last, self.with_depth(f"n {order} {{z}}h.0.1 h.0.2 w.0.1 w.0.2 co.1 h.1 w.1 co.2", "z.1 z.2"))
        self.unroll(last, "h.1", "w.1")
        for name, source in sources.items():
            self.put(FollowSplit(products, self.loop(products, name), source, _LEVELS - 1))
        terms = " ".join(
            iterator.name for iterator in self.state.stages[products].iters if iterator.kind is IterKind.REDUCTION
        )
        loops = [self.with_depth(f"{{z}}th.{level} tw.{level}", f"z.{level}") for level in range(_LEVELS)]
        outer, middle, inner = loops
        self.reorder(products, f"eps nu n co.0 {outer} co.1 {middle} {terms} {inner} co.2")
        self.put(ComputeAt(products, last, self.loop(last, order.split()[-1])))
        self.split(back, "co", (lanes,))
        self.reorder(back, self.with_depth("n {z}th tw nu co.0 vh co.1", "z"))
        self.unroll(back, "vh")
        self.put(ComputeAt(back, last, self.loop(last, "co.1")))
        return self

    def input_transform(self, lanes: int) -> "_Sketch":
        """A copy in which the input is transformed tile by tile, some channels at a time."""
        other = self.copy()
        packed, rows = other.number("data_pack"), other.number("data_rows")
        other.split(packed, "ci", (None,))
        other.reorder(packed, self.with_depth("n {z}th tw ci.0 eps nu ci.1", "z"))
        other.unroll(packed, "eps", "nu")
        other.split(rows, "ci", (lanes,))
        other.reorder(rows, self.with_depth("n {z}th x ci.0 eps ci.1", "z"))
        other.unroll(rows, "eps")
        other.put(ComputeAt(rows, packed, other.loop(packed, "ci.0")))
        return other
