"""Scatters visit each update once, and give what a loop over the updates gives."""

from typing import Any

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Value
from retune.compiler.ir.expr import Load
from retune.compiler.ir.stmt import For, LoopKind, Stmt, exprs_of, inner_stmts, walk_stmt
from retune.compiler.ir.visit import find, of_type
from retune.compiler.lower.build_loops import build_loops
from retune.compiler.ops import OPS
from retune.compiler.ops.indexing import REDUCTIONS
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.state import replay

Array = np.ndarray[Any, Any]
JOIN: dict[str, Any] = {
    "none": lambda _, new: new,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}
SHAPES: list[tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("scatter_elements", (300,), (200,), (200,), {"axis": 0}),
    ("scatter_elements", (9, 5, 3), (80, 5, 2), (80, 5, 2), {"axis": 0}),
    ("scatter_elements", (4, 90), (3, 70), (3, 70), {"axis": 1}),
    ("scatter_elements", (9, 5, 32), (12, 1, 1), (12, 4, 32), {"axis": 0}),
    ("scatter_elements", (3, 20, 64), (1, 9, 1), (2, 9, 48), {"axis": 1}),
    ("scatter_nd", (6, 7, 5), (10, 8, 2), (10, 8, 5), {}),
    ("scatter_nd", (6, 64), (20, 1), (20, 64), {}),
    ("scatter_nd", (64, 3), (100, 1), (100, 3), {}),
    ("scatter_nd", (70,), (3, 1), (3,), {}),
]


def _joined(op: str, reduction: str, x: Array, indices: Array, updates: Array, attrs: dict[str, Any]) -> Array:
    result = x.copy()
    if op == "scatter_elements":
        indices = np.broadcast_to(indices, updates.shape)
    for place in np.ndindex(indices.shape if op == "scatter_elements" else indices.shape[:-1]):
        found = np.atleast_1d(indices[place])
        point: tuple[Any, ...] = tuple(found)
        if op == "scatter_elements":
            point = (*place[: attrs["axis"]], int(found[0]), *place[attrs["axis"] + 1 :])
        bounds = zip(point, x.shape, strict=False)
        if all(-extent <= index < extent for index, extent in bounds):  # what lies outside is left out
            result[point] = JOIN[reduction](result[point], updates[place])
    return result


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("op", "shape", "index", "update", "attrs"), SHAPES)
@pytest.mark.parametrize(("dtype", "threads"), [("float32", 2), ("int8", 1)])
def test_a_scatter_joins_the_updates_in_order(
    op: str,
    shape: tuple[int, ...],
    index: tuple[int, ...],
    update: tuple[int, ...],
    attrs: dict[str, Any],
    reduction: str,
    dtype: str,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if threads > 1:
        monkeypatch.setattr("retune.compiler.lower.scatter._PARALLEL", 1)
        monkeypatch.setattr("retune.compiler.lower.scatter._LEAST_PART", 16)
    rng = np.random.default_rng(0)
    x, updates = (rng.integers(-3, 4, size).astype(dtype) for size in (shape, update))
    limits = np.array(shape[: index[-1]]) if op == "scatter_nd" else np.array(shape[attrs["axis"]])
    indices = rng.integers(-limits - 1, limits + 1, index)
    builder = GraphBuilder("case", [Value("x", shape, dtype), Value("i", index, "int64"), Value("u", update, dtype)])
    result = builder.emit(op, ["x", "i", "u"], {**attrs, "reduction": reduction})
    executor = GraphExecutor(compile_graph(builder.finish({"y": result}), Target.host(), threads=threads))
    for name, array in {"x": x, "i": indices, "u": updates}.items():
        executor.set_input(name, array)
    executor.run()
    np.testing.assert_array_equal(executor.get_output(0), _joined(op, reduction, x, indices, updates, attrs))


@pytest.mark.parametrize(("op", "index"), [("scatter_nd", (99, 1)), ("scatter_elements", (99, 1))])
def test_threads_share_the_rows_of_many_updates(op: str, index: tuple[int, ...]) -> None:
    x, u = te.placeholder((50, 1024), "float32", "x"), te.placeholder((99, 1024), "float32", "u")
    attrs = {"reduction": "add"} | ({"axis": 0} if op == "scatter_elements" else {})
    dag = ComputeDAG([x, i := te.placeholder(index, "int64", "i"), u, OPS[op].tensor((x, i, u), attrs)])
    function = build_loops(replay(dag, default_steps(dag)), "scatter")
    (update,) = [top for top in of_type(For, inner_stmts(function.body)) if _reads(top, "u")]
    assert (update.kind, update.extent) == (LoopKind.PARALLEL, 16)


def _reads(stmt: Stmt, name: str) -> bool:
    return any(load.buffer.name == name for inner in walk_stmt(stmt) for load in find(Load, *exprs_of(inner)))


def _iterations(stmt: Stmt) -> int:
    count = sum(map(_iterations, inner_stmts(stmt))) or 1
    return count * stmt.extent if isinstance(stmt, For) else count


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("op", "shape"), [("scatter_nd", (5000, 1)), ("scatter_elements", (5000,))])
def test_the_loops_of_a_scatter_grow_with_its_operands(op: str, shape: tuple[int, ...], reduction: str) -> None:
    x, u = (te.placeholder((5000,), "float32", name) for name in "xu")
    indices = te.placeholder(shape, "int64", "i")
    attrs = {"reduction": reduction} | ({"axis": 0} if op == "scatter_elements" else {})
    dag = ComputeDAG([x, indices, u, OPS[op].tensor((x, indices, u), attrs)])
    function = build_loops(replay(dag, default_steps(dag)), "scatter")
    assert _iterations(function.body) < 10 * 5000
