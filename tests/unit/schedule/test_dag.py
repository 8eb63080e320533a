"""Compute graphs: order, FLOP count, keys, access analysis, pickling."""

import gc
import pickle
import weakref

import pytest

from retune.compiler import te
from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.core.errors import DefinitionError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.schedule.contraction import contraction_of
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.reads import elementwise_match, is_strictly_inlineable, needs_multi_level_tiling
from retune.compiler.schedule.state import State
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.tensor import CONCATENATED, Tensor


def matmul(n: int, wrap: bool = False, name: str = "C") -> list[Tensor]:
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis(n, "k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], k), name)
    return [a, b, te.compute((n, n), lambda i, j: te.maximum(c[i, j], 0.0), "R") if wrap else c]


def test_stage_order_is_depth_first_from_the_outputs() -> None:
    a, b, c = (te.placeholder((8, 8), name=name) for name in "ABC")
    k, q = te.reduce_axis(8, "k"), te.reduce_axis(8, "q")
    d = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * b[k, j], k), "D")
    e = te.compute((8, 8), lambda i, j: te.sum(d[i, q] * c[q, j], q), "E")
    assert [op.name for op in ComputeDAG([a, b, c, e]).ops] == ["A", "B", "D", "C", "E"]


def test_flops_of_a_matmul_and_of_a_relu_after_it() -> None:
    assert ComputeDAG(matmul(64)).flop_count == 2 * 64**3
    assert ComputeDAG(matmul(64, wrap=True)).flop_count == 2 * 64**3 + 64**2


def test_padding_is_free_a_float_comparison_is_not_and_an_attribute_overrides() -> None:
    a = te.placeholder((8,), name="A")
    padded = te.compute((10,), lambda i: te.if_then_else(te.logical_and(i >= 1, i < 9), a[i - 1], 0.0), "P")
    assert ComputeDAG([a, padded]).flop_count == 0
    positive = te.compute((8,), lambda i: te.if_then_else(a[i] > 0.0, a[i], 0.0), "S")
    assert ComputeDAG([a, positive]).flop_count == 8
    counted = te.compute((8,), lambda i: a[i] + 1.0, "F", {"FLOP": 1234})
    assert ComputeDAG([a, counted]).flop_count == 1234


def test_equal_computations_have_equal_keys_and_others_do_not() -> None:
    key = ComputeDAG(matmul(16)).workload_key
    assert key == ComputeDAG(matmul(16)).workload_key
    assert len({key, ComputeDAG(matmul(8)).workload_key, ComputeDAG(matmul(16, wrap=True)).workload_key}) == 3


def test_the_order_of_the_arguments_is_part_of_the_key() -> None:
    a, b, c = matmul(16)
    assert ComputeDAG([a, b, c]).workload_key != ComputeDAG([b, a, c]).workload_key


def test_pickling_keeps_identity_inside_the_graph() -> None:
    dag = ComputeDAG(matmul(16, wrap=True))
    copy = pickle.loads(pickle.dumps(dag))
    assert str(copy) == str(dag)
    assert copy.workload_key == dag.workload_key
    assert str(State.initial(copy)) == str(State.initial(dag))
    assert copy.id_of(copy.inputs[1]) == dag.id_of(dag.inputs[1])


def test_what_needs_tiling() -> None:
    assert needs_multi_level_tiling(ComputeDAG(matmul(16)), 2)
    u, v = te.placeholder((8,), name="u"), te.placeholder((8,), name="v")
    assert needs_multi_level_tiling(ComputeDAG([u, v, te.compute((8, 8), lambda i, j: u[i] * v[j], "outer")]), 2)
    x = te.placeholder((4, 9, 8), name="x")
    k = te.reduce_axis(2, "k")
    assert not needs_multi_level_tiling(
        ComputeDAG([x, te.compute((4, 8, 8), lambda n, h, c: te.max(x[n, h + k, c], k), "p")]), 1
    )


def test_what_is_strictly_inlineable() -> None:
    a = te.placeholder((8, 8), name="A")
    cases: list[tuple[Tensor, bool]] = [
        (te.compute((8, 8), lambda i, j: a[i, j] + 1.0, "plain"), True),
        (te.compute((8, 8), lambda i, j: a[j, i] + 1.0, "turned"), False),
        (te.compute((8, 8), lambda i, j: te.exp(a[i, j]), "costly"), False),
        (te.compute((8, 8), lambda i, j: te.if_then_else(i > 2, a[i, j], 0.0), "branch"), False),
        (te.compute((8,), lambda i: a[i, i], "diagonal"), False),
        (te.compute((8, 8), lambda *_: te.const(1.0), "constant"), True),
    ]
    for tensor, expected in cases:
        dag = ComputeDAG([a, tensor])
        assert is_strictly_inlineable(dag, dag.id_of(tensor)) is expected, tensor.name


@pytest.mark.parametrize(("first", "expected"), [(32, True), (8, False)])
def test_long_tensors_end_to_end_are_inlined_where_they_are_summed(*, first: int, expected: bool) -> None:
    a, b = te.placeholder((8, first), name="A"), te.placeholder((8, 64 - first), name="B")
    joined = te.compute(
        (8, 64), lambda i, j: te.if_then_else(j < first, a[i, j], b[i, j - first]), "joined", attrs={CONCATENATED: 1}
    )
    k = te.reduce_axis(64, "k")
    total = te.compute((8,), lambda i: te.sum(joined[i, k], k), "total")
    turned = te.compute((64,), lambda i: te.sum(joined[i // 8, k], k), "turned")
    assert is_strictly_inlineable(ComputeDAG([a, b, total]), 2) is expected
    assert is_strictly_inlineable(ComputeDAG([a, b, turned]), 2) is expected
    copied = te.compute((8, 64), lambda i, j: joined[i, j] + 1.0, "copied")
    assert not is_strictly_inlineable(ComputeDAG([a, b, copied]), 2)


def test_elementwise_match_looks_through_single_readers() -> None:
    dag = ComputeDAG(matmul(8, wrap=True))
    assert elementwise_match(dag, 2, 3)
    a, b, c = matmul(8)
    turned = te.compute((8, 8), lambda i, j: c[j, i], "T")
    assert not elementwise_match(ComputeDAG([a, b, turned]), 2, 3)


def test_malformed_definitions_say_what_is_wrong() -> None:
    a = te.placeholder((8, 8), name="A")
    k = te.reduce_axis(8, "i")
    with pytest.raises(DefinitionError, match="axis names must differ"):
        te.compute((8,), lambda i: te.sum(a[i, k], k), "C")
    with pytest.raises(DefinitionError, match="2 dimensions but is read with 1"):
        te.compute((8,), lambda i: a[i], "C")
    with pytest.raises(DefinitionError, match="must be the whole body"):
        te.compute((8,), lambda j: te.sum(a[j, k], k) + 1.0, "C")
    with pytest.raises(DefinitionError, match="no truth value"):
        te.compute((8,), lambda j: 1.0 if a[j, 0] > 0.0 else 2.0, "C")
    with pytest.raises(DefinitionError, match="positive integers"):
        te.placeholder((8, 0), name="empty")
    with pytest.raises(DefinitionError, match="at least one computed output"):
        ComputeDAG([a])


def test_analyses_do_not_keep_a_graph_alive() -> None:
    x, w = te.placeholder((8, 16), name="x"), te.placeholder((16, 4), name="w")
    k = te.reduce_axis(16, "k")
    dag = ComputeDAG([x, w, te.compute((8, 4), lambda i, j: te.sum(x[i, k] * w[k, j], k), "y")])
    assert needs_multi_level_tiling(dag, 2)
    assert contraction_of(dag, 2) is not None
    task = SearchTask("product", dag, Target.host(), HardwareParams(num_cores=1))
    build_kernel(task, default_steps_of(task), "kernel")
    reference = weakref.ref(dag)
    del dag, task
    gc.collect()
    assert reference() is None
