"""Vector loops that lanes cannot share become serial; others stay."""

import pytest

from retune.compiler.errors import LoweringError
from retune.compiler.lower.passes import LegalizeLoops
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, ComputeAt, Reorder, Split
from tests.unit.lower.small import doubled, golden, loops, matmul, sum_and_peak, window


def test_a_vector_loop_without_a_guard_stays() -> None:
    function = LegalizeLoops().apply(loops(doubled(8), Split(1, 0, 8, (4,)), Annotate(1, 1, Annotation.VECTORIZE)))
    assert str(function) == golden(
        """
        def k(x: float32[8], y: float32[8]):
          for i.0.s1 in 2:
            vector i.1.s1 in 4:
              y[((i.0.s1 * 4) + i.1.s1)] = (x[((i.0.s1 * 4) + i.1.s1)] * 2.0)
        """
    )


def test_a_vector_loop_under_its_own_guard_becomes_serial() -> None:
    function = LegalizeLoops().apply(loops(doubled(10), Split(1, 0, 10, (4,)), Annotate(1, 1, Annotation.VECTORIZE)))
    assert str(function) == golden(
        """
        def k(x: float32[10], y: float32[10]):
          for i.0.s1 in 3:
            for i.1.s1 in 4:
              if (((i.0.s1 * 4) + i.1.s1) < 10):
                y[((i.0.s1 * 4) + i.1.s1)] = (x[((i.0.s1 * 4) + i.1.s1)] * 2.0)
        """
    )


def test_with_masks_a_guard_on_neighbouring_elements_stays() -> None:
    steps = (Split(1, 0, 10, (4,)), Annotate(1, 1, Annotation.VECTORIZE))
    assert "vector i.1.s1" in str(LegalizeLoops(masks=True).apply(loops(doubled(10), *steps)))
    turned = (Reorder(2, (1, 0, 2)), Split(2, 1, 10, (4,)), Annotate(2, 2, Annotation.VECTORIZE))
    assert "vector" not in str(LegalizeLoops(masks=True).apply(loops(matmul(10, 3, 3), *turned)))


def test_a_vector_loop_with_a_buffer_of_its_own_becomes_serial() -> None:
    function = LegalizeLoops().apply(loops(window(), ComputeAt(1, 2, 0), Annotate(2, 0, Annotation.VECTORIZE)))
    assert str(function) == golden(
        """
        def k(x: float32[10], b: float32[8]):
          for i.s2 in 8:
            local a: float32[3]
            for i.s1 in 3:
              a[i.s1] = (x[(i.s1 + i.s2)] + 1.0)
            b[i.s2] = (a[(i.s2 - i.s2)] + a[((i.s2 + 2) - i.s2)])
        """
    )


def test_lanes_have_temporaries_of_their_own() -> None:
    steps = (Reorder(1, (1, 0)), Annotate(1, 1, Annotation.VECTORIZE))
    function = LegalizeLoops().apply(loops(sum_and_peak(8, 3), *steps))
    assert str(function).count("vector i.s1 in 8") == 2


def test_a_parallel_loop_inside_another_is_refused() -> None:
    function = loops(doubled(8), Split(1, 0, 8, (4,)), Annotate(1, 1, Annotation.PARALLEL))
    with pytest.raises(LoweringError, match="lies inside another loop"):
        LegalizeLoops().apply(function)
