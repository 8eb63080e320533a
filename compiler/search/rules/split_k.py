"""Sketch rule: split a long sum over few points into parts that are summed in parallel (GPU).

The sketch fixes the number of parts; a second kernel adds them up.
"""

from dataclasses import dataclass

from retune.compiler.schedule.reads import needs_multi_level_tiling
from retune.compiler.schedule.state import IterKind, Root, State
from retune.compiler.schedule.steps import Rfactor
from retune.compiler.search.rules.base import SketchContext, Verdict
from retune.compiler.search.rules.facts import has_cache_write, loop_volumes
from retune.compiler.search.rules.rfactor import CrossThreadReduction
from retune.compiler.search.rules.tensor_core import in_parts, kind_of
from retune.compiler.search.rules.tiling import literal_extent

_THREADS = 128
"""Threads of a block; each multiprocessor gets at least one block."""
_ENOUGH_SUMS, _GOOD_SUMS = 4, 32
"""Sums per thread: with `_ENOUGH_SUMS` a second kernel costs more than it saves, with `_GOOD_SUMS` loads are reused."""
_FEWEST_TERMS = 128
"""Least terms of a part of a sum: enough that its first copies do not dominate its time."""


@dataclass(frozen=True, slots=True)
class SplitK:
    """Sum parts first if a sum has too few points to keep the GPU busy; the parts are further points of the same
    tiling.

    before: for i: for j: for k: c += a * b
    after:  for k.0: for i: for j: for k.1: c.rf[k.0] += a * b;  for i: for j: for k.0: c += c.rf[k.0]
    """

    def judge(self, context: SketchContext, state: State, stage: int) -> Verdict:
        """APPLY for such a sum; the other rules may also tile it unsplit."""
        return Verdict.APPLY if _parts(context, state, stage) else Verdict.SKIP

    def expand(self, context: SketchContext, state: State, stage: int) -> tuple[tuple[State, int], ...]:
        """A state for each number of parts, whose sums are visited next."""
        return tuple((in_parts(state, stage, parts), stage) for parts in _parts(context, state, stage))


def _parts(context: SketchContext, state: State, stage: int) -> tuple[int, ...]:
    """Numbers of parts for a sum: the largest two powers of two that divide its longest loop, leave each part enough
    terms, and make at most twice as many tiles as there are multiprocessors. None for tensor-core products, sums with
    so few points that a block's threads share each, and sums that would be rounded to halves.
    """
    described = state.stages[stage]
    plain = described.is_compute and isinstance(described.location, Root) and not described.is_tiled
    if not plain or described.op.dtype != "float32" or not needs_multi_level_tiling(state.dag, stage):
        return ()
    # A sum that is already split (`Rfactor`) is not split again.
    if has_cache_write(state, stage) or any(isinstance(step, Rfactor) for step in state.steps):
        return ()
    spread = CrossThreadReduction().judge(context, state, stage) is not Verdict.SKIP
    if spread or kind_of(context, state, stage) is not None:
        return ()
    points, terms = loop_volumes(state, stage)
    at_once = context.hardware.gpu.multiprocessors
    if points >= _ENOUGH_SUMS * _THREADS * at_once:
        return ()
    most = min(2 * at_once // -(-points // (_GOOD_SUMS * _THREADS)), terms // _FEWEST_TERMS)
    longest = max((literal_extent(loop) for loop in described.iters if loop.kind is IterKind.REDUCTION), default=1)
    return tuple(parts for parts in (2, 4, 8, 16, 32) if parts <= most and longest % parts == 0)[-2:]
