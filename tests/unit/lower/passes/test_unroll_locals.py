"""Loops over a small local buffer are written out."""

from retune.compiler.lower.passes import UnrollLocals
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, ComputeAt, Split
from tests.unit.lower.small import golden, loops, window

# ruff: noqa: E501 - golden text is as wide as it is


def test_the_loops_of_a_small_buffer_are_unrolled() -> None:
    function = UnrollLocals(16).apply(
        loops(window(), Split(2, 0, 8, (4,)), ComputeAt(1, 2, 0), Annotate(2, 1, Annotation.VECTORIZE))
    )
    assert str(function) == golden(
        """
        def k(x: float32[10], b: float32[8]):
          for i.0.s2 in 2:
            local a: float32[6]
            unroll i.s1 in 6:
              a[i.s1] = (x[(i.s1 + (i.0.s2 * 4))] + 1.0)
            vector i.1.s2 in 4:
              b[((i.0.s2 * 4) + i.1.s2)] = (a[(((i.0.s2 * 4) + i.1.s2) - (i.0.s2 * 4))] + a[((((i.0.s2 * 4) + i.1.s2) + 2) - (i.0.s2 * 4))])
        """
    )


def test_a_program_without_local_buffers_is_left_alone() -> None:
    function = UnrollLocals(16).apply(loops(window()))
    assert str(function) == golden(
        """
        def k(x: float32[10], b: float32[8]):
          workspace a: float32[10]
          for i.s1 in 10:
            a[i.s1] = (x[i.s1] + 1.0)
          for i.s2 in 8:
            b[i.s2] = (a[i.s2] + a[(i.s2 + 2)])
        """
    )
