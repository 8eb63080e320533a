"""Small computations whose loops fit on a page, and how golden text is written in the tests."""

import textwrap

from retune.compiler import te
from retune.compiler.ir.stmt import LoopFunction
from retune.compiler.lower.build_loops import build_loops
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, State, replay
from retune.compiler.schedule.steps import Annotate, CacheRead, ComputeAt, Split, Step


def doubled(n: int) -> ComputeDAG:
    """y[i] = 2 x[i]"""
    x = te.placeholder((n,), name="x")
    return ComputeDAG([x, te.compute((n,), lambda i: x[i] * 2.0, "y")])


def window() -> ComputeDAG:
    """b[i] = a[i] + a[i + 2] with a = x + 1; x has 10 elements, b 8."""
    x = te.placeholder((10,), name="x")
    a = te.compute((10,), lambda i: x[i] + 1.0, "a")
    return ComputeDAG([x, te.compute((8,), lambda i: a[i] + a[i + 2], "b")])


def matmul(n: int, m: int, k: int) -> ComputeDAG:
    """C = A B; B may be packed."""
    a, b = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis(k, "k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], r), "C", {"layout_free_placeholders": (b,)})
    return ComputeDAG([a, b, c])


def sum_and_peak(n: int, m: int) -> ComputeDAG:
    """The sum of every row, and the largest element but no less than 0, in one reduction."""
    both = te.comm_reducer(lambda x, y: (x[0] + y[0], te.maximum(x[1], y[1])), lambda *_: (0.0, 0.0), "both")
    x, k = te.placeholder((n, m), name="x"), te.reduce_axis(m, "k")
    return ComputeDAG([x, *te.compute((n,), lambda i: both((x[i, k], x[i, k]), axis=k), "t")])


def loops(dag: ComputeDAG, *steps: Step) -> LoopFunction:
    """The loops of a schedule before any pass."""
    return build_loops(replay(dag, steps), "k")


def golden(text: str) -> str:
    """A golden text as it stands in a test: without the indentation and the first line break."""
    return textwrap.dedent(text).strip()


def fetched_product() -> State:
    """C = A B for a GPU, in blocks of 16 threads, a row of A being fetched by these together."""
    steps = (
        CacheRead(0, "shared", (2,)),
        Split(3, 2, 8, (4,)),
        ComputeAt(1, 3, 2),
        Annotate(3, 0, Annotation.BLOCK_X),
        Annotate(3, 1, Annotation.THREAD_X),
        Annotate(1, 1, Annotation.THREAD_X),
    )
    return replay(matmul(4, 16, 8), steps)
