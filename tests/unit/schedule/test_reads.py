"""The rules by which sketches judge how operations read each other, one test a rule."""

from collections.abc import Callable

import pytest

# ruff: noqa: ARG005 - the parameters of a body name its axes
from retune.compiler import te
from retune.compiler.ir.expr import Expr, const
from retune.compiler.schedule import primitives as s
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.reads import (
    consumers,
    elementwise_match,
    is_shifted_axis,
    is_strictly_inlineable,
    needs_multi_level_tiling,
    producers,
    single_consumer,
)
from retune.compiler.schedule.state import State
from retune.compiler.te.reduction import Axis, AxisKind
from retune.compiler.te.tensor import Tensor

V, W = Axis("v", 8, AxisKind.SPATIAL), Axis("w", 8, AxisKind.SPATIAL)


@pytest.mark.parametrize(
    ("index", "shifted"),
    [
        (V, True),
        (V + 3, True),
        (3 + V, True),
        (V - 3, True),
        (3 - V, False),
        (V * 2, False),
        (V + W, False),
        (V // 2, False),
        (V % 4, False),
        (W, False),
        (const(3), False),
        (V + 1 + 1, False),
    ],
)
def test_a_shift_is_an_axis_plus_or_minus_a_literal(index: Expr, shifted: bool) -> None:
    assert is_shifted_axis(index, V) is shifted


A = te.placeholder((8, 8), name="A")
B = te.placeholder((8, 8), name="B")


def of(shape: tuple[int, ...], body: Callable[..., Expr], **attrs: object) -> tuple[ComputeDAG, int]:
    tensor = te.compute(shape, body, "T", attrs)
    dag = ComputeDAG([A, B, tensor])
    return dag, dag.id_of(tensor)


def k8() -> Axis:
    return te.reduce_axis(8, "k")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda i, j: A[i, j] + B[i, j], True),
        (lambda i, j: A[i, 0], True),  # a missing axis
        (lambda i, j: A[0, j], True),
        (lambda i, j: A[j, i], False),  # another order
        (lambda i, j: A[i, i], False),  # an axis twice
        (lambda i, j: A[i // 2, j], False),  # no shift
        (lambda i, j: te.exp(A[i, j]), False),
        (lambda i, j: te.tanh(A[i, j]), True),  # exp alone counts as costly
        (lambda i, j: te.if_then_else(i > 2, A[i, j], 0.0), False),
        (lambda i, j: te.select(A[i, j] > 0.0, A[i, j], 0.0), False),
        (lambda i, j: te.const(2.0), True),
        (lambda i, j: te.if_then_else(i > 2, te.const(1.0), te.exp(te.const(1.0))), True),  # reads nothing
    ],
)
def test_strictly_inlineable_stages_are_recognized(body: Callable[..., Expr], expected: bool) -> None:
    assert is_strictly_inlineable(*of((8, 8), body)) is expected


def test_an_input_is_not_inlineable() -> None:
    dag, _ = of((8,), lambda i: A[i, i])
    assert not is_strictly_inlineable(dag, 0)


def test_multi_level_tiling_needs_an_axis_that_a_producer_is_read_without() -> None:
    k = k8()
    assert needs_multi_level_tiling(*of((8, 8), lambda i, j: te.sum(A[i, k] * B[k, j], k)))
    assert needs_multi_level_tiling(*of((8, 8), lambda i, j: te.sum(A[i, k], k)))  # one, and a reduction
    assert needs_multi_level_tiling(*of((8, 8), lambda i, j: A[i, 0] * B[0, j]))  # two, without one
    assert not needs_multi_level_tiling(*of((8, 8), lambda i, j: A[i, 0] * 2.0))  # one, without a reduction
    assert not needs_multi_level_tiling(*of((8, 8), lambda i, j: A[i, 0] * A[0, j]))  # one producer counts once
    assert not needs_multi_level_tiling(*of((8,), lambda i: te.sum(A[i, k], k)))
    assert not needs_multi_level_tiling(*of((8, 1), lambda i, j: te.sum(A[i, k] * B[i, k], k)))  # of extent 1
    assert not needs_multi_level_tiling(
        *of(
            (8, 8),
            lambda i, j: te.sum(A[i, k] * B[k, j], k),
            auto_scheduler_simplify_const_tensor_indices=["i"],
        )
    )


def chain() -> tuple[ComputeDAG, Tensor, Tensor, Tensor]:
    c = te.compute((8, 8), lambda i, j: A[i, j] + 1.0, "C")
    d = te.compute((8, 8), lambda i, j: c[i, j] * B[j, i], "D")
    e = te.compute((8, 8), lambda i, j: d[i, j] * 2.0, "E")
    return ComputeDAG([A, B, e]), c, d, e


def test_elementwise_match_follows_chains() -> None:
    dag, c, d, e = chain()
    numbers = [dag.id_of(tensor) for tensor in (c, d, e)]
    assert elementwise_match(dag, numbers[0], numbers[1])  # that D turns B does not matter
    assert elementwise_match(dag, numbers[0], numbers[2])  # through a chain
    assert not elementwise_match(dag, dag.id_of(A), numbers[0])  # an input is not computed
    for body, shape in (
        (lambda i, j: c[j, i], (8, 8)),
        (lambda i, j: c[i, 0] + 0.0, (8, 8)),
        (lambda i: c[i, i], (8,)),
        (lambda i, j: c[i, j], (4, 8)),
    ):
        other = te.compute(shape, body, "other")
        graph = ComputeDAG([A, other])
        assert not elementwise_match(graph, graph.id_of(c), graph.id_of(other))
    twice = [te.compute((8, 8), lambda i, j: c[i, j], name) for name in "PQ"]
    graph = ComputeDAG([A, *twice])
    assert not elementwise_match(graph, graph.id_of(c), graph.id_of(twice[0]))  # two readers


def test_consumers_and_producers_look_through_inlined_stages() -> None:
    dag, c, d, e = chain()
    first, second, third = (dag.id_of(tensor) for tensor in (c, d, e))
    state = State.initial(dag)
    assert consumers(state, first) == (second,)
    state = s.compute_inline(state, d)
    assert consumers(state, first) == (third,)
    assert producers(state, third) == tuple(sorted((first, dag.id_of(B))))


def test_several_consumers_count_as_one_inside_one_stage() -> None:
    c = te.compute((8, 8), lambda i, j: A[i, j] + 1.0, "C")
    d = te.compute((8, 8), lambda i, j: c[i, j] * 2.0, "D")
    e = te.compute((8, 8), lambda i, j: c[i, j] + d[i, j], "E")
    state = State.initial(ComputeDAG([A, e]))
    assert single_consumer(state, 1) is None
    state = s.compute_at(state, d, e, 0)
    assert single_consumer(state, 1) == 3
