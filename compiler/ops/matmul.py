"""Matrix products and contractions; each is one reduction that reads its operands in their own layout, uncopied."""

import math
from collections.abc import Sequence

import numpy as np

from retune.compiler import te
from retune.compiler.ir.dot import BYTES
from retune.compiler.ir.expr import Expr
from retune.compiler.ops.op import Array, FusionKind, Lowered, Op, OpCall, summed_product, widen
from retune.compiler.te.tensor import Tensor

"""The dtypes of operands whose products are summed in int32."""


def require_bytes(call: OpCall) -> None:
    """The operands must be bytes, of any signs."""
    call.require(all(operand.dtype in BYTES for operand in call.types), "the operands must be bytes")


def _sum_dtype(call: OpCall) -> str | None:
    """The dtype in which products are summed, int32 for operators of bytes; None when the operands' dtypes differ."""
    if call.op.startswith("q"):
        require_bytes(call)
        return "int32"
    first, second = call.types
    return (call.out_dtype or first.dtype) if first.dtype == second.dtype else None


def _dense(call: OpCall) -> Lowered:
    """(M, K) x (K, N); `qdense` is of bytes, summed in int32."""
    x, w = call.types
    dtype = _sum_dtype(call)
    if dtype is None or not len(x.shape) == len(w.shape) == 2 or x.shape[1] != w.shape[0]:
        raise call.misfit("needs (M, K) and (K, N) of one dtype")
    shape = (x.shape[0], w.shape[1])

    def build(a: Tensor, b: Tensor) -> Tensor:
        k = te.reduce_axis(a.shape[1], "k")

        def body(i: Expr, j: Expr) -> Expr:
            return summed_product(dtype, a[i, k], b[k, j], [k])

        return te.compute(shape, body, name=call.name, attrs=call.layout_free(b))

    return Lowered(shape, dtype, build)


def _batch_matmul(call: OpCall) -> Lowered:
    """(B, M, K) x (B, K, N); `qbatch_matmul` is of bytes, summed in int32."""
    x, w = call.types
    dtype = _sum_dtype(call)
    fits = len(x.shape) == len(w.shape) == 3 and x.shape[0] == w.shape[0] and x.shape[2] == w.shape[1]
    if dtype is None or not fits:
        raise call.misfit("needs (B, M, K) and (B, K, N) of one dtype")
    shape = (x.shape[0], x.shape[1], w.shape[2])

    def build(a: Tensor, b: Tensor) -> Tensor:
        k = te.reduce_axis(a.shape[2], "k")

        def body(n: Expr, i: Expr, j: Expr) -> Expr:
            return summed_product(dtype, a[n, i, k], b[n, k, j], [k])

        return te.compute(shape, body, name=call.name, attrs=call.layout_free(b))

    return Lowered(shape, dtype, build)


def _matmul_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    # Widened first: products and sums of bytes would wrap around.
    a, b = (array.astype(np.int32) if call.op.startswith("q") else widen(array) for array in arrays)
    return np.asarray(np.matmul(a, b))


def _contract(call: OpCall) -> Lowered:
    """The sum of products that `left`, `right` and `result` spell, over the letters that the result lacks.

    hij,jhd->ihd        r[i, h, d] = sum over j of a[h, i, j] * b[j, h, d]
    """
    left, right, result = call.text("left"), call.text("right"), call.text("result")
    extents: dict[str, int] = {}
    for word, operand in zip((left, right), call.types, strict=True):
        call.require(len(word) == len(operand.shape), f"{word!r} needs a letter for each dimension")
        for letter, extent in zip(word, operand.shape, strict=True):
            known = extents.setdefault(letter, extent)
            call.require(known == extent, f"{letter!r} stands for both {known} and {extent} elements")
    spelled = all(len(set(word)) == len(word) for word in (left, right, result)) and set(result) <= set(extents)
    call.require(spelled, f"{left},{right}->{result} repeats a letter or invents one")
    summed = {letter for letter in extents if letter not in result}
    # So that `_contract_array` can be one product of matrices.
    call.require(
        summed <= set(left) & set(right), f"{left},{right}->{result} sums over a letter that one operand lacks"
    )
    call.require(call.types[0].dtype == call.types[1].dtype, "the operands have different dtypes")
    dtype = call.out_dtype or call.types[0].dtype
    shape = tuple(extents[letter] for letter in result)

    def build(a: Tensor, b: Tensor) -> Tensor:
        inner = [(letter, extent) for letter, extent in zip(left, a.shape, strict=True) if letter not in result]
        axes = {letter: te.reduce_axis(extent, f"k{number}") for number, (letter, extent) in enumerate(inner)}

        def body(*outer: Expr) -> Expr:
            at: dict[str, Expr] = {**dict(zip(result, outer, strict=True)), **axes}
            factors = a[tuple(at[letter] for letter in left)], b[tuple(at[letter] for letter in right)]
            return summed_product(dtype, *factors, list(axes.values()))

        return te.compute(shape, body, name=call.name, attrs=call.layout_free(b))

    return Lowered(shape, dtype, build)


def _contract_array(call: OpCall, arrays: Sequence[Array]) -> Array:
    """A plain product of matrices between transposes, which is what makes it fast."""
    left, right, result = call.text("left"), call.text("right"), call.text("result")
    summed = [letter for letter in left if letter not in result]
    shared = [letter for letter in left if letter in right and letter in result]
    rows = [letter for letter in left if letter not in right]
    columns = [letter for letter in right if letter not in left]
    a, b = map(widen, arrays)
    extents = {**dict(zip(left, a.shape, strict=True)), **dict(zip(right, b.shape, strict=True))}

    def extent(letters: Sequence[str]) -> int:
        return math.prod(extents[letter] for letter in letters)

    a = a.transpose([left.index(letter) for letter in (*shared, *rows, *summed)])
    b = b.transpose([right.index(letter) for letter in (*shared, *summed, *columns)])
    both = np.matmul(
        a.reshape(extent(shared), extent(rows), extent(summed)),
        b.reshape(extent(shared), extent(summed), extent(columns)),
    )
    # As matmul leaves the axes; the last transpose gives them the order of the result.
    order = (*shared, *rows, *columns)
    both = both.reshape([extents[letter] for letter in order])
    return np.asarray(both.transpose([order.index(letter) for letter in result]))


_COMPLEX = FusionKind.COMPLEX

OPERATORS = (
    Op("dense", 2, _COMPLEX, _dense, _matmul_array),
    Op("batch_matmul", 2, _COMPLEX, _batch_matmul, _matmul_array),
    Op("qdense", 2, _COMPLEX, _dense, _matmul_array),
    Op("qbatch_matmul", 2, _COMPLEX, _batch_matmul, _matmul_array),
    Op("contract", 2, _COMPLEX, _contract, _contract_array, {"left": str, "right": str, "result": str}),
)
