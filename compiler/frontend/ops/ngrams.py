"""Converter of ONNX's TfIdfVectorizer for integers: how often each n-gram occurs in a row, times its weight."""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, cast_to
from retune.compiler.frontend.ops.indexing import cut
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array


def _tables(node: OnnxNode) -> list[Array]:
    """For every length of n-grams, from 1 on, their tokens: (number, length)."""
    pool, starts = node.ints("pool_int64s"), node.ints("ngram_counts")
    if pool is None or starts is None:
        raise node.unsupported("only n-grams of integers are supported")
    ends = (*starts[1:], len(pool))
    return [
        np.asarray(pool[start:end], np.int64).reshape(-1, length)
        for length, (start, end) in enumerate(zip(starts, ends, strict=True), 1)
    ]


def _count(builder: GraphBuilder, rows: str, table: Array, most_skipped: int) -> str:
    """How often each n-gram of a table occurs in rows (N, C), with up to so many tokens between two of its own."""
    count, tokens = builder.value(rows).shape
    number, length = table.shape
    total = builder.filled(0, "float32", (count, number))
    for distance in range(1, most_skipped + 2 if length > 1 else 2):
        positions = tokens - (length - 1) * distance
        if positions <= 0:
            break
        hit = ""
        for index in range(length):
            part = cut(builder, rows, 1, index * distance, index * distance + positions)
            part = builder.emit("reshape", [part], {"shape": (count, 1, positions)})
            token = builder.constant(table[:, index].reshape(number, 1), "tokens")
            same = builder.emit("equal", [part, token])
            hit = builder.emit("bit_and", [hit, same]) if hit else same
        occurrences = builder.emit("reduce_sum", [cast_to(builder, hit, "float32")], {"axes": (2,), "keepdims": False})
        total = builder.emit("add", [total, occurrences])
    return total


def _vectorize(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x, mode = node.operand(builder, 0), node.text("mode", "TF")
    if mode not in ("IDF", "TF", "TFIDF"):
        raise node.unsupported(f"mode {mode!r} is unknown")
    columns = node.ints("ngram_indexes") or ()
    shortest, longest = (node.integer(f"{end}_gram_length", 1) for end in ("min", "max"))
    skipped = node.integer("max_skip_count", 0)
    count = prod(x.shape[:-1])
    rows = builder.emit("reshape", [cast_to(builder, x.name, "int64")], {"shape": (count, x.shape[-1])})
    parts = []
    for length, table in enumerate(_tables(node), 1):
        if len(table):
            is_counted = shortest <= length <= longest
            unseen = (count, len(table))
            parts.append(_count(builder, rows, table, skipped) if is_counted else builder.filled(0, "float32", unseen))
    total = builder.emit("concat", [*parts, builder.filled(0, "float32", (count, 1))], {"axis": 1})
    if mode == "IDF":
        total = builder.emit("minimum", [total, builder.scalar(1, "float32")])
    weights = node.numbers("weights")
    if mode != "TF" and weights:
        factors = builder.constant(np.asarray([*weights, 0], np.float32), "weights")
        total = builder.emit("mul", [total, factors])
    # Columns without an n-gram read the last column, of zeros.
    table = np.full(max(columns) + 1, len(columns), np.int64)
    table[list(columns)] = np.arange(len(columns))
    total = builder.emit("gather", [total, builder.constant(table, "columns")], {"axis": 1})
    return [builder.emit("reshape", [total], {"shape": (*x.shape[:-1], len(table))})]


CONVERTERS: Mapping[str, Converter] = {"TfIdfVectorizer": _vectorize}
