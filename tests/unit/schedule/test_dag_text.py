"""Graphs as text, for people and for keys."""

import json
import pickle

import pytest

from retune.compiler import te
from retune.compiler.ir.expr import Expr
from retune.compiler.runtime.ffi.registry import register_func, remove_global_func
from retune.compiler.schedule.dag import HASH_FUNCTION, ComputeDAG
from retune.compiler.schedule.dag_text import shorten
from retune.compiler.te.tensor import Tensor


def every_kind() -> ComputeDAG:
    a, b = te.placeholder((8, 8), name="A"), te.placeholder((8, 8), name="B")
    k, q, r, t = (te.reduce_axis(8, name) for name in "kqrt")
    c = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * b[k, j], k), "C", {"layout_free_placeholders": (b,)})
    d = te.compute((8,), lambda i: te.max(c[i, q], q), "D")
    e = te.compute((8,), lambda i: te.min(c[i, r], r), "E")
    f = te.compute((8, 8), lambda i, j: te.exp(c[i, j]), "F")
    g = te.compute((8,), lambda i: te.prod(f[i, t], t), "G")
    total = te.compute((8,), lambda i: d[i] + e[i] * g[i], "total")
    return ComputeDAG([a, b, total])


def test_every_kind_of_operation_in_full_and_in_short() -> None:
    dag = every_kind()
    assert dag.text().splitlines() == [
        "A = PLACEHOLDER [8, 8]",
        "B = PLACEHOLDER [8, 8]",
        "C(i, j) += (A[i, k] * B[k, j])",
        "D(i) max= C[i, q]",
        "E(i) min= C[i, r]",
        "F(i, j) = exp(C[i, j])",
        "G(i) reduce<prod>= F[i, t]",
        "total(i) = (D[i] + (E[i] * G[i]))",
    ]
    short = dag.text(simple=True).splitlines()
    assert short[:2] == ["A = PLACEHOLDER", "B = PLACEHOLDER"]
    assert short[5] == "F(i, j) = exp"
    assert short[7] == "total(i) = (D[i] + (E[i] * G[i]))"
    assert str(dag) == dag.text()


def test_several_results_and_a_choice_as_combiner() -> None:
    x = te.placeholder((4, 8), name="x")
    k = te.reduce_axis(8, "k")
    larger = te.comm_reducer(lambda a, b: te.select(a >= b, a, b), lambda _: -1e30, name="larger")
    best = te.compute((4,), lambda i: larger(x[i, k], k), "best")
    low, high = te.compute((4,), lambda i: (best[i] - 1.0, best[i] + 1.0), "ends")
    assert ComputeDAG([x, low, high]).text().splitlines()[1:] == [
        "best(i) select((y <= x), x, y)= x[i, k]",
        "ends.v0(i) = (best[i] - 1.0)",
        "ends.v1(i) = (best[i] + 1.0)",
    ]


def test_operations_of_one_name_get_numbers() -> None:
    x = te.placeholder((4,), name="x")
    y = te.compute((4,), lambda i: x[i] + 1.0, "y")
    again = te.compute((4,), lambda i: y[i] + 1.0, "y")
    assert ComputeDAG([x, again]).text().splitlines()[1:] == ["y(i) = (x[i] + 1.0)", "y_1(i) = (y[i] + 1.0)"]


def test_long_lines_keep_their_ends() -> None:
    x = te.placeholder((4,), name="x")
    body: Expr = x[0]
    for place in range(60):
        body = body + x[place % 4]
    dag = ComputeDAG([x, te.compute((4,), lambda i: body + x[i], "y")])
    long, short = dag.text().splitlines()[1], str(dag).splitlines()[1]
    assert len(long) > 256 > 128 + 20
    assert short == f"{long[:128]} ..(omitted).. {long[-128:]}"
    assert shorten("a" * 256) == "a" * 256
    assert shorten("a" * 257) != "a" * 257


def graph(dtype: str = "float32", extent: int = 4, free: bool = False) -> ComputeDAG:
    x, w = te.placeholder((8, 4), dtype, "x"), te.placeholder((8,), dtype, "w")
    k = te.reduce_axis(extent, "k")
    attrs = {"layout_free_placeholders": (w,)} if free else None
    return ComputeDAG([x, w, te.compute((8,), lambda i: te.sum(x[i, k] * w[i], k), "y", attrs)])


def test_keys_differ_where_texts_do_not() -> None:
    graphs = [graph(), graph("float64"), graph(extent=3), graph(free=True)]
    assert len({dag.text() for dag in graphs}) == 1
    assert len({dag.hash_key() for dag in graphs}) == 4
    assert graph().hash_key() == graph().hash_key()
    assert json.loads(graph().workload_key) == [graph().hash_key(), [8, 4], [8], [8]]


def test_a_custom_hash_function_makes_the_keys() -> None:
    texts: list[str] = []

    def counted(text: str) -> int:
        texts.append(text)
        return len(texts) - 1

    tensors: list[list[Tensor]] = [[*dag.inputs, *dag.outputs] for dag in (graph(), graph("float64"), graph())]
    register_func(HASH_FUNCTION, counted)
    try:
        dags = [ComputeDAG(each) for each in tensors]
        hashes = [json.loads(dag.workload_key)[0] for dag in dags]
        copy = pickle.loads(pickle.dumps(dags[2]))
    finally:
        remove_global_func(HASH_FUNCTION)
    assert hashes == [0, 1, 2]
    assert [dag.hash_key() for dag in dags] == ["0", "1", "2"]
    assert texts[0] == texts[2] != texts[1]
    assert copy.workload_key == dags[2].workload_key  # though the function is gone
    assert ComputeDAG(tensors[0]).hash_key() not in ("0", "1", "2")


@pytest.mark.parametrize("simple", [False, True])
def test_custom_functions_are_named(simple: bool) -> None:
    x = te.placeholder((4,), name="x")
    y = te.extern((4,), [x], lambda ins, outs: te.call_packed("tests.copy", ins[0], outs[0]), "y")
    assert "tests.copy(x, v0)" in ComputeDAG([x, y]).text(simple)
