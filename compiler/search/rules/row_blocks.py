"""Sketch rule: computes two products with a reduction of rows between them, as in attention, in blocks of rows.

It ends the derivation, since it places every stage.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from retune.compiler.schedule.default.cpu import inlined_by_default
from retune.compiler.schedule.default.row_blocks import BlockTiles, find_row_blocks, placed_in_blocks
from retune.compiler.schedule.state import State
from retune.compiler.search.rules.base import SketchContext, Verdict


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
