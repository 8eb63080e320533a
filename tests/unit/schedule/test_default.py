"""The untuned schedule: what is inlined, vectorised, blocked, left naive."""

from compiler import te
from compiler.schedule.dag import ComputeDAG
from compiler.schedule.default import default_steps
from compiler.schedule.state import replay


def lines(dag: ComputeDAG) -> list[str]:
    return [line.strip() for line in str(replay(dag, default_steps(dag))).splitlines()[1:]]


def test_an_elementwise_chain_is_one_parallel_vector_loop() -> None:
    x = te.placeholder((64, 9, 40), name="x")
    y = te.compute(x.shape, lambda i, j, k: x[i, j, k] + 1.0, "y")
    dag = ComputeDAG([x, te.compute(x.shape, lambda i, j, k: te.maximum(y[i, j, k], 0.0), "z")])
    assert lines(dag) == ["parallel i (0,64)", "for j (0,9)", "vectorize k (0,40)", "z = ..."]


def test_a_turning_copy_is_blocked() -> None:
    x = te.placeholder((1, 7, 7, 64), name="x")
    dag = ComputeDAG([x, te.compute((1, 64, 7, 7), lambda n, c, h, w: x[n, h, w, c], "turned")])
    assert lines(dag) == [
        "parallel n@c.0@h@ (0,28)",
        "for c.1 (0,16)",
        "vectorize w (0,7)",
        "turned = ...",
    ]


def test_a_short_turning_copy_is_left_alone() -> None:
    x = te.placeholder((1, 7, 7, 3), name="x")
    dag = ComputeDAG([x, te.compute((1, 3, 7, 7), lambda n, c, h, w: x[n, h, w, c], "turned")])
    assert lines(dag) == ["parallel n@c@h@ (0,21)", "vectorize w (0,7)", "turned = ..."]


def test_pooling_gets_vectors_and_a_matmul_naive_loops() -> None:
    x = te.placeholder((8, 10, 32), name="x")
    k = te.reduce_axis(3, "k")
    pool = te.compute((8, 8, 32), lambda n, h, c: te.max(x[n, h + k, c], k), "pool")
    assert lines(ComputeDAG([x, pool])) == ["parallel n@h@ (0,64)", "vectorize c (0,32)", "for k (0,3)", "pool = ..."]
    a, b, q = te.placeholder((80, 9), name="a"), te.placeholder((9, 7), name="b"), te.reduce_axis(9, "q")
    product = te.compute((80, 7), lambda i, j: te.sum(a[i, q] * b[q, j], q), "product")
    assert lines(ComputeDAG([a, b, product])) == ["parallel i (0,80)", "for j (0,7)", "for q (0,9)", "product = ..."]
