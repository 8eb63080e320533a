"""Operations with several results: definitions, graphs, keys, FLOPs, steps, and what is refused."""

import pickle
from typing import Any

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import DefinitionError, ScheduleError
from retune.compiler.core.target import HardwareParams
from retune.compiler.model.features import FEATURE_NAMES
from retune.compiler.model.features.extract import extract
from retune.compiler.schedule import primitives as s
from retune.compiler.schedule.bounds import infer_bounds
from retune.compiler.schedule.choices import choices_of
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import State
from retune.compiler.schedule.statements import statement_nests
from retune.compiler.te.reduction import Reduce
from retune.compiler.te.tensor import ComputeOp, Tensor


def moments(name: str = "moments") -> te.Reducer:
    return te.comm_reducer(lambda x, y: (x[0] + y[0], x[1] + y[1]), lambda *_: (0.0, 0.0), name)


def two_sums(n: int = 4, m: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    x, k = te.placeholder((n, m), name="x"), te.reduce_axis(m, "k")
    total, squares = te.compute((n,), lambda i: moments()((x[i, k], x[i, k] * x[i, k]), axis=k), "sums")
    return x, total, squares


def test_a_tuple_makes_tensors_of_one_operation() -> None:
    x = te.placeholder((4, 6), name="x")
    results = te.compute((4, 6), lambda i, j: (x[i, j] + 1.0, te.cast("int32", x[i, j]), x[i, j] > 0.0), "parts")
    assert [tensor.name for tensor in results] == ["parts.v0", "parts.v1", "parts.v2"]
    assert [tensor.dtype for tensor in results] == ["float32", "int32", "bool"]
    assert {tensor.op for tensor in results} == {results[0].op}
    assert results[1] == Tensor(results[0].op, 1) != results[0]
    (alone,) = te.compute((4,), lambda i: (x[i, 0],), "alone")
    assert alone.name == "alone"


def test_a_reduction_of_a_tuple_is_one_body() -> None:
    _, total, squares = two_sums()
    op = total.op
    assert isinstance(op, ComputeOp)
    assert isinstance(op.body, Reduce)
    assert op is squares.op
    assert op.dtypes == ("float32", "float32")
    assert op.body.identities == (0.0, 0.0)
    assert [axis.name for axis in op.reduce_axes] == ["k"]


def test_the_graph_is_printed_a_line_a_result() -> None:
    x, total, squares = two_sums()
    dag = ComputeDAG([x, total, te.compute((4,), lambda i: squares[i] - 1.0, "less")])
    assert str(dag).splitlines() == [
        "x = PLACEHOLDER [4, 6]",
        "sums.v0(i) reduce<(x0 + y0)>= (x[i, k], (x[i, k] * x[i, k]))",
        "sums.v1(i) reduce<(x1 + y1)>= (x[i, k], (x[i, k] * x[i, k]))",
        "less(i) = (sums.v1[i] - 1.0)",
    ]
    plain = te.compute((4,), lambda i: (x[i, 0], x[i, 1]), "plain")
    assert str(ComputeDAG([x, *plain])).splitlines()[1:] == ["plain.v0(i) = x[i, 0]", "plain.v1(i) = x[i, 1]"]


def test_any_of_the_results_may_leave_and_the_key_says_which() -> None:
    x, total, squares = two_sums()
    dags = [ComputeDAG([x, *outputs]) for outputs in ([total], [squares], [total, squares], [squares, total])]
    assert len({dag.workload_key for dag in dags}) == 4
    assert all(len(dag.ops) == 2 and dag.output_ids == {1} for dag in dags)
    assert dags[0].nodes[1].tensors == (total, squares)
    copy = pickle.loads(pickle.dumps(dags[3]))
    assert copy.workload_key == dags[3].workload_key
    assert [copy.id_of(tensor) for tensor in copy.outputs] == [1, 1]
    assert copy.outputs[0].op is copy.outputs[1].op


def test_flops_count_every_result_by_its_own_type() -> None:
    x, total, squares = two_sums(4, 6)
    assert ComputeDAG([x, total, squares]).flop_count == 4 * 6 * (1 + 1 + 1)
    pair = te.compute((4, 6), lambda i, j: (x[i, j] * 2.0 + 1.0, te.cast("int32", j) + 1), "pair")
    assert ComputeDAG([x, *pair]).flop_count == 4 * 6 * (2 + 1)


def test_a_write_cache_of_two_results_is_one_new_stage_with_equal_loops() -> None:
    x = te.placeholder((4, 6), name="x")
    pair = te.compute((4, 6), lambda i, j: (x[i, j] + 1.0, x[i, j] * 2.0), "pair")
    state, cache = s.cache_write(State.initial(ComputeDAG([x, *pair])), "pair", "local")
    assert [op.name for op in state.dag.ops] == ["x", "pair.local", "pair"]
    first, second = infer_bounds(state).stages[1:]
    assert [it.extent for it in first.iters] == [it.extent for it in second.iters] == [4, 6]
    assert [tensor.name for tensor in state.dag.nodes[1].tensors] == ["pair.local.v0", "pair.local.v1"]
    assert cache == state.dag.nodes[1].tensor
    assert state.dag.outputs == pair
    for handle in (*pair, pair[0].op, "pair", "pair.v1"):
        assert s.stage_number(state, handle) == 2


def test_a_read_cache_holds_the_results_that_its_readers_read() -> None:
    x, total, squares = two_sums()
    one = te.compute((4,), lambda i: squares[i] + 1.0, "one")
    both = te.compute((4,), lambda i: squares[i] + total[i], "both")
    start = State.initial(ComputeDAG([x, one, both]))
    single, _ = s.cache_read(start, "sums", "local", ["one"])
    assert [tensor.name for tensor in single.dag.nodes[2].tensors] == ["sums.local"]
    assert "sums.local(ax0) = sums.v1[ax0]" in str(single.dag)
    double, _ = s.cache_read(start, "sums", "local", ["both", "one"])
    assert "sums.local.v1(ax0) = sums.v1[ax0]" in str(double.dag)
    assert "both(i) = (sums.local.v1[i] + sums.local.v0[i])" in str(double.dag)


def test_a_factored_reduction_of_a_tuple() -> None:
    x, total, squares = two_sums(4, 6)
    state, (_, inner) = s.split(State.initial(ComputeDAG([x, total, squares])), "sums", "k", [4])
    state, _ = s.rfactor(state, "sums", inner, 1)
    assert state.dag.text().splitlines()[2:] == [
        "sums.rf.v1(i, k_1) reduce<(x1 + y1)>= "
        "(select((((k_0 * 4) + k_1) < 6), x[i, ((k_0 * 4) + k_1)], 0.0), "
        "select((((k_0 * 4) + k_1) < 6), (x[i, ((k_0 * 4) + k_1)] * x[i, ((k_0 * 4) + k_1)]), 0.0))",
        "sums.repl.v0(ax0) reduce<(x0 + y0)>= (sums.rf.v0[ax0, k_1_v], sums.rf.v1[ax0, k_1_v])",
        "sums.repl.v1(ax0) reduce<(x1 + y1)>= (sums.rf.v0[ax0, k_1_v], sums.rf.v1[ax0, k_1_v])",
    ]
    assert state.dag.outputs == (total, squares)


def test_an_output_with_a_read_sibling_stays_where_it_is() -> None:
    x = te.placeholder((4,), name="x")
    left, right = te.compute((4,), lambda i: (x[i] + 1.0, x[i] - 1.0), "pair")
    state = State.initial(ComputeDAG([x, left, te.compute((4,), lambda i: right[i] * 2.0, "twice")]))
    with pytest.raises(ScheduleError, match="pair: only a computed stage that is neither reduction nor output"):
        s.compute_inline(state, "pair")
    with pytest.raises(ScheduleError, match="pair: an output cannot be computed inside another stage"):
        s.compute_at(state, "pair", "twice", "i")


def test_a_statement_writes_every_result_and_its_features_see_them() -> None:
    x, total, squares = two_sums(16, 64)
    state = State.initial(ComputeDAG([x, total, squares]))
    (nest,) = statement_nests(state)
    assert [write.tensor for write in nest.writes] == [total, squares]
    row = extract([nest], choices_of(state), HardwareParams(2))[0, 0]
    found = dict(zip(FEATURE_NAMES, row.tolist(), strict=True))
    assert [found[f"B{slot}.read_write"] for slot in range(3)] == [1, 1, 0]
    assert found["tile_accumulators"] == pytest.approx(np.log2(2 + 1))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda x, i, k: moments()((x[i, k], x[i, k]), axis=k)[0], "the values of .* belong together"),
        (lambda x, i, k: moments()((x[i, k], x[i, k]), axis=k)[::-1], "the values of .* belong together"),
        (lambda x, i, k: (te.sum(x[i, k], k), x[i, 0]), "a reduction must be the whole body"),
        (lambda *_: (), "the body has no values"),
        (lambda *point: moments()((), axis=point[2]), "there are no values to reduce"),
        (lambda x, i, k: moments()((x[i, k],) * 3, axis=k), "joining tuples of 3 values gives 2"),
        (
            lambda x, i, k: te.comm_reducer(lambda a, b: a * b, 0.5, "odd")(te.cast("int32", x[i, k]), axis=k),
            "odd: 0.5 is no int32",
        ),
        (
            lambda x, i, k: te.comm_reducer(lambda a, b: (a[0], a[1] > b[1]), lambda *_: (0.0, 0.0), "odd")(
                (x[i, k], x[i, k]), axis=k
            ),
            "odd: joining two values number 1 of float32 gives bool; cast the result",
        ),
        (
            lambda x, i, k: te.comm_reducer(lambda a, b: a + b, lambda _: x[0, 0], "odd")(x[i, k], axis=k),
            "odd: the identity .* must be literals",
        ),
    ],
)
def test_malformed_definitions_say_what_is_wrong(body: Any, message: str) -> None:
    x, k = te.placeholder((4, 6), name="x"), te.reduce_axis(6, "k")
    with pytest.raises(DefinitionError, match=message):
        te.compute((4,), lambda i: body(x, i, k), "bad")
