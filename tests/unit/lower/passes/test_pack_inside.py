"""A kernel that packs its constants itself."""

from retune.compiler.ir.verify import verify
from retune.compiler.lower.passes import PackConstants, PackInside
from retune.compiler.schedule.steps import Reorder, Split
from tests.unit.lower.small import golden, loops, matmul

# ruff: noqa: E501 - golden text is as wide as it is


def test_a_constant_is_packed_before_it_is_read() -> None:
    packed = PackConstants().apply(loops(matmul(2, 8, 4), Split(2, 1, 8, (4,)), Reorder(2, (1, 3, 0, 2))))
    function = PackInside().apply(packed)
    verify(function, "pack-inside")
    assert str(function) == golden(
        """
        def k(A: float32[2, 4], B: float32[32], C: float32[2, 8]):
          workspace B.packed: float32[32]
          parallel B.packed.outer in 8:
            let B.packed.1 = (B.packed.outer // 4)
            let B.packed.0 = (B.packed.outer % 4)
            vector B.packed.2 in 4:
              B.packed[((((B.packed.1 * 4) + B.packed.0) * 4) + B.packed.2)] = B[((((B.packed.0 * 2) + B.packed.1) * 4) + B.packed.2)]
          for j.0.s2 in 2:
            for i.s2 in 2:
              for j.1.s2 in 4:
                C[i.s2, ((j.0.s2 * 4) + j.1.s2)] = 0.0
            for k.s2 in 4:
              for i.s2 in 2:
                for j.1.s2 in 4:
                  C[i.s2, ((j.0.s2 * 4) + j.1.s2)] = (C[i.s2, ((j.0.s2 * 4) + j.1.s2)] + (A[i.s2, k.s2] * B.packed[((((j.0.s2 * 4) + k.s2) * 4) + j.1.s2)]))
        """
    )


def test_a_layout_that_stays_needs_no_copy() -> None:
    function = PackInside().apply(PackConstants().apply(loops(matmul(2, 8, 4), Reorder(2, (2, 0, 1)))))
    assert function.packings == ()
    assert function.workspace == ()
