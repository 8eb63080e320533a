"""Random tensor programs with symbolic extents, and the check that their kernels compute them for any sizes.

As in `checks`, every buffer is between inaccessible pages, once close to the upper and once directly after the lower,
and inputs are write-protected.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from retune.compiler import te
from retune.compiler.codegen.build import build_symbolic_kernel
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.ir.expr import Expr, is_float
from retune.compiler.lower.symbolic import Unsupported
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.buffers import CANARY, FencedArray
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.symbols import symbols_of
from retune.compiler.te.tensor import PlaceholderOp, Tensor
from tests.support.property.scans import random_scan

_FILLERS = (CANARY, 0xFF)
Program = list[Tensor]


def _elementwise(rng: np.random.Generator, x: Expr, y: Expr | float) -> Expr:
    """A function of two numbers whose values stay small."""
    if not is_float(x.dtype):
        return x * 3 + y if isinstance(y, Expr) else x * 3 - 7
    forms: list[Callable[[], Expr]] = [
        lambda: te.maximum(x, y),
        lambda: te.tanh(x) + y,
        lambda: te.exp(te.minimum(x, 1.0)) * y,
        lambda: te.if_then_else(x > 0.25, x, x * 0.5) - y,
    ]
    return forms[rng.integers(len(forms))]()


def _tail(rng: np.random.Generator, x: Tensor, inputs: Program) -> Program:
    """The result, sometimes with elementwise readers."""
    if rng.integers(3) == 0:
        return [*inputs, x]
    bias = te.placeholder(x.shape[-1:], x.dtype, "bias")
    biased = te.compute(x.shape, lambda *at: _elementwise(rng, x[at], bias[at[-1]]), "biased", varargs_names=_names(x))
    if rng.integers(2):
        return [*inputs, bias, biased]
    other = te.placeholder(x.shape, x.dtype, "other")
    joined = te.compute(x.shape, lambda *at: biased[at] + other[at], "joined", varargs_names=_names(x))
    return [*inputs, bias, other, joined]


def _names(x: Tensor) -> list[str]:
    return [f"i{dim}" for dim in range(x.ndim)]


def _dim(rng: np.random.Generator, name: str, high: int) -> int:
    """A symbol, or sometimes a fixed extent."""
    return te.symbol(name) if rng.integers(3) else int(rng.integers(1, high))


def dense(rng: np.random.Generator) -> Program:
    """A product with weights, of one or two leading symbols, with a tail."""
    dtype = str(rng.choice(["float32", "float32", "float16", "bfloat16", "float64", "int8"]))
    depth, columns = int(rng.integers(1, 70)), int(rng.integers(1, 130))
    lead = (te.symbol("b"), te.symbol("n"))[rng.integers(2) :]
    x = te.placeholder((*lead, depth), dtype, "x")
    w = te.placeholder((columns, depth) if rng.integers(2) else (depth, columns), dtype, "w")
    k = te.reduce_axis(depth, "k")
    wide = "int32" if dtype == "int8" else "float32" if dtype in ("float16", "bfloat16") else dtype

    def body(*at: Expr) -> Expr:
        weight = w[at[-1], k] if w.shape[0] == columns and w.shape != (depth, columns) else w[k, at[-1]]
        return te.sum(te.cast(wide, x[(*at[:-1], k)]) * te.cast(wide, weight), k)

    attrs = {"layout_free_placeholders": (w,)} if rng.integers(4) else None
    y = te.compute((*lead, columns), body, "y", attrs, varargs_names=["i", "j", "c"][-len(lead) - 1 :])
    return _tail(rng, y, [x, w])


def batch_matmul(rng: np.random.Generator) -> Program:
    """A batched product of which any of the extents is symbolic and any factor transposed."""
    b, m, n, d = (_dim(rng, name, high) for name, high in (("b", 4), ("m", 40), ("n", 90), ("d", 40)))
    if rng.integers(2):
        m = n
    turned_left, turned_right = rng.integers(2), rng.integers(2)
    x = te.placeholder((b, d, m) if turned_left else (b, m, d), name="x")
    y = te.placeholder((b, n, d) if turned_right else (b, d, n), name="y")
    k = te.reduce_axis(d, "k")

    def body(i: Expr, j: Expr, c: Expr) -> Expr:
        left = x[i, k, j] if turned_left else x[i, j, k]
        return te.sum(left * (y[i, c, k] if turned_right else y[i, k, c]), k)

    z = te.compute((b, m, n), body, "z")
    if rng.integers(3) == 0:
        masked = te.compute((b, m, n), lambda i, j, c: te.if_then_else(c <= j, z[i, j, c], -3.0), "masked")
        return [x, y, masked]
    return _tail(rng, z, [x, y])


def elementwise(rng: np.random.Generator) -> Program:
    """A chain over a tensor of any rank, whose operands are broadcast along some axes."""
    dtype = str(rng.choice(["float32", "float64", "int32", "float16"]))
    rank = int(rng.integers(1, 4))
    shape = tuple(_dim(rng, name, 40) for name in ("a", "b", "n")[:rank])
    x = te.placeholder(shape, dtype, "x")
    kept = [dim for dim in range(rank) if rng.integers(2)]
    y = te.placeholder([shape[dim] for dim in kept], dtype, "y")
    names = _names(x)
    z = te.compute(
        shape,
        lambda *at: _elementwise(rng, x[at], y[tuple(at[dim] for dim in kept)] if kept else 2.0),
        "z",
        varargs_names=names,
    )
    return _tail(rng, z, [x, y] if kept else [x])


def reduction(rng: np.random.Generator) -> Program:
    """A sum or an extreme over one axis, fixed or symbolic, contiguous or not."""
    shape = [_dim(rng, name, 50) for name in ("a", "b", "n")]
    reduced = int(rng.integers(3))
    dtype = str(rng.choice(["float32", "float32", "float16", "int32", "float64"]))
    x, k = te.placeholder(shape, dtype, "x"), te.reduce_axis(shape[reduced], "k")
    combine = (te.sum, te.max, te.min)[rng.integers(3)]
    kept = [extent for dim, extent in enumerate(shape) if dim != reduced]
    scale = 2 if dtype == "int32" else 0.5

    def body(i: Expr, j: Expr) -> Expr:
        at = [i, j]
        at.insert(reduced, k)
        return combine(x[tuple(at)] * scale, k)

    return _tail(rng, te.compute(kept, body, "y"), [x])


def softmax(rng: np.random.Generator) -> Program:
    """A softmax over rows of a fixed or symbolic length."""
    rows, columns = _dim(rng, "m", 20), _dim(rng, "n", 90)
    x, first, second = te.placeholder((rows, columns), name="x"), *(te.reduce_axis(columns, name) for name in "kl")
    largest = te.compute((rows,), lambda i: te.max(x[i, first], first), "largest")
    raised = te.compute((rows, columns), lambda i, j: te.exp(x[i, j] - largest[i]), "raised")
    total = te.compute((rows,), lambda i: te.sum(raised[i, second], second), "total")
    return [x, te.compute((rows, columns), lambda i, j: raised[i, j] / total[i], "y")]


def attention(rng: np.random.Generator) -> Program:
    """Two products around a softmax of the rows between them, of a symbolic length or two."""
    b, heads, depth = _dim(rng, "b", 3), int(rng.integers(1, 4)), int(rng.integers(1, 40))
    n = te.symbol("n")
    m = n if rng.integers(2) else _dim(rng, "m", 40)
    width = depth if rng.integers(2) else int(rng.integers(1, 40))
    turned = rng.integers(2)
    q, v = te.placeholder((b, n, heads, depth), name="q"), te.placeholder((b, m, heads, width), name="v")
    key = te.placeholder((b, heads, depth, m) if turned else (b, m, heads, depth), name="key")
    c, r, s, e = te.reduce_axis(depth, "c"), *(te.reduce_axis(m, name) for name in "rse")

    def product(i: Expr, h: Expr, x: Expr, y: Expr) -> Expr:
        return te.sum(q[i, x, h, c] * (key[i, h, c, y] if turned else key[i, y, h, c]), c)

    scores = te.compute((b, heads, n, m), product, "scores")
    inputs = [q, key, v]
    match rng.integers(3):
        case 0:
            mask = te.placeholder((b, m), name="mask")
            inputs.append(mask)
            scores = te.compute((b, heads, n, m), lambda i, h, x, y: scores[i, h, x, y] * 0.3 + mask[i, y], "added")
        case 1:
            scores = te.compute(
                (b, heads, n, m), lambda i, h, x, y: te.if_then_else(y <= x, scores[i, h, x, y], -1e4), "causal"
            )
    largest = te.compute((b, heads, n), lambda i, h, x: te.max(scores[i, h, x, r], r), "largest")
    raised = te.compute((b, heads, n, m), lambda i, h, x, y: te.exp(scores[i, h, x, y] - largest[i, h, x]), "raised")
    total = te.compute((b, heads, n), lambda i, h, x: te.sum(raised[i, h, x, s], s), "total")
    shares = te.compute((b, heads, n, m), lambda i, h, x, y: raised[i, h, x, y] / total[i, h, x], "shares")
    shape = (b, n, heads, width)
    return [*inputs, te.compute(shape, lambda i, x, h, y: te.sum(shares[i, h, x, e] * v[i, e, h, y], e), "o")]


def norm(rng: np.random.Generator) -> Program:
    """A normalization of rows, over a fixed or symbolic length."""
    rows, columns = te.symbol("m"), _dim(rng, "n", 90)
    x, k, r = te.placeholder((rows, columns), name="x"), te.reduce_axis(columns, "k"), te.reduce_axis(columns, "r")
    scale = te.placeholder((columns,), name="scale")
    count = te.cast("float32", te.const(0) + columns)
    mean = te.compute((rows,), lambda i: te.sum(x[i, k], k), "mean")

    def centered(i: Expr, j: Expr) -> Expr:
        return x[i, j] - mean[i] / count

    spread = te.compute((rows,), lambda i: te.sum(centered(i, r) * centered(i, r), r), "spread")
    y = te.compute((rows, columns), lambda i, j: centered(i, j) * te.rsqrt(spread[i] / count + 1e-3) * scale[j], "y")
    return [x, scale, y]


def moved(rng: np.random.Generator) -> Program:
    """A transpose, a reversal, a concatenation or a gather."""
    m, n = te.symbol("m"), te.symbol("n")
    inner = int(rng.integers(1, 40))
    match rng.integers(5):
        case 0:
            x = te.placeholder((m, n, inner), name="x")
            order = [int(dim) for dim in rng.permutation(3)]
            shape = [x.shape[dim] for dim in order]
            return [
                x,
                te.compute(
                    shape,
                    lambda *at: x[tuple(at[order.index(dim)] for dim in range(3))],
                    "y",
                    varargs_names=["i", "j", "l"],
                ),
            ]
        case 1:
            x = te.placeholder((n, inner), name="x")
            return [x, te.compute((n, inner), lambda i, j: x[n - 1 - i, j] * te.cast("float32", i + n), "y")]
        case 2:
            x, y = te.placeholder((m, inner), name="x"), te.placeholder((n, inner), name="y")
            return [x, y, te.compute((m + n, inner), lambda i, j: te.if_then_else(i < m, x[i, j], y[i - m, j]), "z")]
        case 3:
            x, y = te.placeholder((inner, m), name="x"), te.placeholder((inner, n), name="y")
            return [x, y, te.compute((inner, m + n), lambda i, j: te.if_then_else(j < m, x[i, j], y[i, j - m]), "z")]
    table, ids = te.placeholder((23, inner), name="table"), te.placeholder((m, n), "int64", "ids")
    return [table, ids, te.compute((m, n, inner), lambda i, j, c: table[ids[i, j], c] + 1.0, "y")]


def scan(rng: np.random.Generator) -> Program:
    """A recurrence of a symbolic number of steps."""
    return random_scan(rng, te.symbol("n"))


PROGRAMS = (dense, batch_matmul, elementwise, reduction, softmax, attention, norm, moved, scan)


def random_symbolic_program(rng: np.random.Generator) -> Program:
    """One of the programs above; it has at least one symbol."""
    while True:
        program = PROGRAMS[rng.integers(len(PROGRAMS))](rng)
        if symbols_of(program):
            return program


def random_sizes(rng: np.random.Generator, program: Program) -> dict[str, int]:
    """Values of the symbols: 0, 1, small and larger numbers."""
    return {
        name: int(rng.choice([0, 1, 2, 3, int(rng.integers(4, 20)), int(rng.integers(20, 150))]))
        for name in symbols_of(program)
    }


def build(program: Program, target: Target | None = None) -> KernelArtifact | Unsupported:
    chosen = target or Target.host()
    hardware: HardwareParams = hardware_of(chosen, 2)
    return build_symbolic_kernel(SearchTask("kernel", ComputeDAG(program), chosen, hardware), (), "kernel")


def check(
    artifact: KernelArtifact, program: Program, sizes: Mapping[str, int], rng: np.random.Generator, threads: int
) -> None:
    """Run the kernel for some sizes in fences, and compare it with the definition. Raises: AssertionError."""
    tensors = te.instantiate(program, sizes)
    inputs = {tensor: _values(tensor, rng) for tensor in tensors if isinstance(tensor.op, PlaceholderOp)}
    outputs = [tensor for tensor in tensors if tensor not in inputs]
    runs = [run(artifact, tensors, inputs, sizes, threads, at_start=at_start) for at_start in (False, True)]
    for first, second, tensor in zip(*runs, outputs, strict=True):
        assert first.tobytes() == second.tobytes(), f"{tensor.name} depends on memory around the buffers"
    for tensor, result, wanted in zip(outputs, runs[0], evaluate(outputs, inputs), strict=True):
        if not is_float(tensor.dtype):
            np.testing.assert_array_equal(result, wanted, err_msg=f"{tensor.name} for {dict(sizes)}")
            continue
        bound = {"float16": 5e-3, "bfloat16": 4e-2}.get(tensor.dtype, 2e-4)
        result, wanted = result.astype("float64"), wanted.astype("float64")
        np.testing.assert_allclose(result, wanted, rtol=bound, atol=bound, err_msg=f"{tensor.name} for {dict(sizes)}")


def run(
    artifact: KernelArtifact,
    tensors: Sequence[Tensor],
    inputs: Mapping[Tensor, np.ndarray],
    sizes: Mapping[str, int],
    threads: int,
    *,
    at_start: bool = False,
) -> list[np.ndarray]:
    """The outputs of one call in fences. Raises: AssertionError when something around a buffer was written."""
    filler = _FILLERS[at_start]
    fences = []
    for spec, tensor in zip(artifact.at(sizes).args, tensors, strict=True):
        fence = FencedArray(spec.buffer_shape, spec.dtype, at_start=at_start, filler=filler)
        if spec.is_output:
            fence.array.reshape(-1).view("uint8")[:] = filler
        else:
            value = inputs[tensor]
            fence.array.reshape(-1)[:] = value.reshape(-1) if spec.packing is None else spec.packing.pack(value)
            fence.protect(writable=False)
        fences.append(fence)
    load_kernels([artifact])["kernel"].bind([fence.array for fence in fences], threads, sizes)()
    for fence, spec in zip(fences, artifact.args, strict=True):
        assert fence.damage() == "", f"{spec.name}: {fence.damage()}"
    return [fence.array for fence, spec in zip(fences, artifact.args, strict=True) if spec.is_output]


def _values(tensor: Tensor, rng: np.random.Generator) -> np.ndarray:
    if is_float(tensor.dtype):
        return (rng.random(tensor.shape) * 2 - 1).astype(np.dtype(tensor.dtype))
    return rng.integers(0, 23, tensor.shape).astype(tensor.dtype)
