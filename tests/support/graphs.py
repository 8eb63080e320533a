"""Graphs of function calls for tests, written by hand."""

from collections.abc import Callable

import numpy as np

from benchmarks.graph_json import EntrySpec, GraphJson, Node, Source
from retune.compiler.runtime.artifact import Array

Function = Callable[..., None]


def add_one(x: Array, out: Array) -> None:
    """out = x + 1."""
    np.add(x, 1, out=out)


def one_call(shape: tuple[int, ...] = (4,)) -> GraphJson:
    """x -> myadd -> out."""
    entries = (EntrySpec(shape, "float32", 0), EntrySpec(shape, "float32", 1))
    return GraphJson((Node("x"), Node("add", "myadd", (Source(0),))), (0,), (Source(1),), entries)


def chain(functions: str, storage: tuple[int, ...], shapes: tuple[tuple[int, ...], ...] | None = None) -> GraphJson:
    """x through one function after the other, named by words; `storage` and `shapes` are those of the entries."""
    words = functions.split()
    nodes = (Node("x"), *(Node(f"n{i}", word, (Source(i),)) for i, word in enumerate(words)))
    sizes = shapes or ((4,),) * len(nodes)
    entries = tuple(EntrySpec(shape, "float32", number) for shape, number in zip(sizes, storage, strict=True))
    return GraphJson(nodes, (0,), (Source(len(words)),), entries)


def weighted() -> GraphJson:
    """out = (x + w) * v, w and v being parameters."""
    nodes = (
        Node("x"),
        Node("w"),
        Node("v"),
        Node("sum", "add", (Source(0), Source(1))),
        Node("product", "multiply", (Source(3), Source(2))),
    )
    entries = tuple(EntrySpec((4,), "float32", number) for number in range(5))
    return GraphJson(nodes, (0, 1, 2), (Source(4),), entries)


ARITHMETIC: dict[str, Function] = {
    "add": lambda a, b, out: np.copyto(out, a + b),
    "multiply": lambda a, b, out: np.copyto(out, a * b),
    "myadd": add_one,
}
