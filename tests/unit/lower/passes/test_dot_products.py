"""Products of narrow numbers are grouped where the target sums them at once."""

from collections.abc import Sequence

import pytest

from retune.compiler import te
from retune.compiler.ir.expr import Dot
from retune.compiler.ir.stmt import LoopFunction, exprs_of, walk_stmt
from retune.compiler.ir.verify import verify
from retune.compiler.ir.visit import walk
from retune.compiler.lower.passes import DotProducts, FlipSignedness, PackConstants, RegisterTiles
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, Reorder, Split, Step
from tests.unit.lower.small import golden, loops

# ruff: noqa: E501 - golden text is as wide as it is

MIXED = frozenset({("uint8", "int8")})
VECTOR = Annotate(2, 2, Annotation.VECTORIZE)


def product(types: Sequence[str], k: int = 8, m: int = 4, turned: bool = False) -> ComputeDAG:
    """C = A B of narrow numbers; B may be packed, `turned` has A by columns."""
    a = te.placeholder((k, 2) if turned else (2, k), types[0], "A")
    b = te.placeholder((k, m), types[1], "B")
    r = te.reduce_axis(k, "k")

    def body(i: te.Axis, j: te.Axis) -> te.Reduce:
        found = te.sum(te.cast(types[2], a[r, i] if turned else a[i, r]) * te.cast(types[2], b[r, j]), r)
        assert isinstance(found, te.Reduce)
        return found

    return ComputeDAG([a, b, te.compute((2, m), body, "C", {"layout_free_placeholders": (b,)})])


def tile(dag: ComputeDAG, *more: Step) -> LoopFunction:
    """The reduction outside, then rows, then a vector of columns."""
    return loops(dag, Reorder(2, (2, 0, 1)), VECTOR, *more)


def dots(function: LoopFunction) -> list[Dot]:
    nodes = (node for stmt in walk_stmt(function.body) for expr in exprs_of(stmt) for node in walk(expr))
    return [node for node in nodes if isinstance(node, Dot)]


def test_four_steps_become_one_and_the_innermost_digit_of_a_weight() -> None:
    function = DotProducts(MIXED).apply(tile(product(("uint8", "int8", "int32"))))
    verify(function, "dot-products")
    packed = PackConstants().apply(function)
    verify(packed, "pack-constants")
    assert str(packed) == golden(
        """
        def k(A: uint8[2, 8], B: int8[32], C: int32[2, 4]):
          packed B: [2, 4, 4] by [0, 2, 1]
          for i.s2 in 2:
            vector j.s2 in 4:
              C[i.s2, j.s2] = int32(0)
          for k.s2.group in 2:
            for i.s2 in 2:
              vector j.s2 in 4:
                C[i.s2, j.s2] = (C[i.s2, j.s2] + dot(k.s2.lane in 4: A[i.s2, ((k.s2.group * 4) + k.s2.lane)] * B[((((k.s2.group * 4) + j.s2) * 4) + k.s2.lane)]))
        """
    )


def test_a_loop_of_four_steps_disappears() -> None:
    function = DotProducts(MIXED).apply(tile(product(("int8", "uint8", "int32"), k=4)))
    (dot,) = dots(function)
    assert dot.width == 4
    assert "group" not in str(function)


def test_two_bfloat16_are_summed_in_float32() -> None:
    native = frozenset({("bfloat16", "bfloat16")})
    (dot,) = dots(DotProducts(native).apply(tile(product(("bfloat16", "bfloat16", "float32")))))
    assert (dot.width, dot.dtype) == (2, "float32")


def test_the_loop_is_chosen_whose_steps_lie_side_by_side() -> None:
    x, w = te.placeholder((6, 4), "uint8", "x"), te.placeholder((4, 4, 4), "int8", "w")
    kx, kc = te.reduce_axis(4, "kx"), te.reduce_axis(4, "kc")
    y = te.compute(
        (3, 4), lambda i, f: te.sum(te.cast("int32", x[i + kx, kc]) * te.cast("int32", w[kx, kc, f]), [kx, kc]), "y"
    )
    dag = ComputeDAG([x, w, y])
    function = DotProducts(MIXED).apply(loops(dag, Reorder(2, (3, 2, 0, 1)), Annotate(2, 3, Annotation.VECTORIZE)))
    (dot,) = dots(function)
    assert dot.var.name == "kc.s2.lane"  # not the innermost one: in memory x[i, kc] has the channels side by side


@pytest.mark.parametrize(
    ("native", "types", "k", "steps"),
    [
        (frozenset(), ("uint8", "int8", "int32"), 8, (Reorder(2, (2, 0, 1)), VECTOR)),  # no instruction
        (MIXED, ("uint8", "int8", "int32"), 6, (Reorder(2, (2, 0, 1)), VECTOR)),  # a rest of two steps
        (MIXED, ("uint8", "int8", "float32"), 8, (Reorder(2, (2, 0, 1)), VECTOR)),  # another type of sums
        (MIXED, ("int16", "int8", "int32"), 8, (Reorder(2, (2, 0, 1)), VECTOR)),  # wide factors
        (MIXED, ("bfloat16", "bfloat16", "float32"), 8, (Reorder(2, (2, 0, 1)), VECTOR)),  # an instruction for others
        (MIXED, ("uint8", "int8", "int32"), 8, (Reorder(2, (2, 0, 1)),)),  # no vector loop
        (MIXED, ("uint8", "int8", "int32"), 8, (Split(2, 2, 8, (3,)), Reorder(2, (2, 3, 0, 1)), Annotate(2, 3, 2))),
    ],
)
def test_other_reductions_stay(
    native: frozenset[tuple[str, str]], types: Sequence[str], k: int, steps: tuple[Step, ...]
) -> None:
    function = loops(product(types, k), *steps)
    assert str(DotProducts(native).apply(function)) == str(function)


def test_a_sign_is_turned_once_for_all_rows() -> None:
    function = FlipSignedness(MIXED, 16).apply(
        RegisterTiles(16).apply(DotProducts(MIXED).apply(tile(product(("int8", "int8", "int32")))))
    )
    verify(function, "flip-signedness")
    assert str(function) == golden(
        """
        def k(A: int8[2, 8], B: int8[8, 4], C: int32[2, 4]):
          register C.acc0: int32[2, 4]
          register C.acc0.extra: int32[4]
          unroll i.s2 in 2:
            vector j.s2 in 4:
              C.acc0[i.s2, j.s2] = int32(0)
          vector j.s2 in 4:
            C.acc0.extra[j.s2] = int32(0)
          for k.s2.group in 2:
            vector j.s2 in 4:
              C.acc0.extra[j.s2] = (C.acc0.extra[j.s2] + dot(k.s2.lane in 4: uint8(128) * B[((k.s2.group * 4) + k.s2.lane), j.s2]))
            unroll i.s2 in 2:
              vector j.s2 in 4:
                C.acc0[i.s2, j.s2] = (C.acc0[i.s2, j.s2] + dot(k.s2.lane in 4: (uint8(A[i.s2, ((k.s2.group * 4) + k.s2.lane)]) ^ uint8(128)) * B[((k.s2.group * 4) + k.s2.lane), j.s2]))
          unroll i.s2 in 2:
            vector j.s2 in 4:
              C[i.s2, j.s2] = (C.acc0[i.s2, j.s2] - C.acc0.extra[j.s2])
        """
    )


@pytest.mark.parametrize("types", [("uint8", "int8", "int32"), ("int8", "uint8", "int32")])
def test_a_pair_that_the_target_takes_is_not_turned(types: Sequence[str]) -> None:
    function = RegisterTiles(16).apply(DotProducts(MIXED).apply(tile(product(types))))
    assert dots(function)
    assert FlipSignedness(MIXED, 16).apply(function) == function
