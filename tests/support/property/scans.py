"""Random recurrences: states of several types and ranks, with products, windows, several results and outer stages."""

from collections.abc import Sequence
from unittest.mock import patch

from retune.compiler import te
from retune.compiler.codegen import scan_loop
from retune.compiler.ir.expr import Expr
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import Step
from retune.compiler.te.tensor import Tensor
from tests.support.property.checks import Verdict, judge
from tests.support.property.draws import Source

DTYPES = ("float32", "float32", "float64", "int32", "int64")
EXTENTS = (1, 2, 3, 5, 8, 16, 17, 33)


def random_scan(source: Source, count: int | None = None) -> list[Tensor]:
    """A scan over one to three states, whose floats stay within -1 and 1, of a few steps or of `count`."""
    steps, first = int(source.integers(3, 7)), int(source.integers(1, 3))
    steps = steps if count is None else first + count
    dtype, rows, width = str(source.choice(DTYPES)), int(source.choice(EXTENTS[:4])), int(source.choice(EXTENTS))
    shape = (steps, rows, width)
    number_of_states = int(source.integers(1, 4))
    states = [te.placeholder(shape, dtype, f"s{index}") for index in range(number_of_states)]
    x = te.placeholder((steps + 1, rows, width), dtype, "x")
    start = te.placeholder((first, rows, width), dtype, "start")
    inits: list[Tensor] = [start for _ in states]
    if source.random() < 0.5:
        inits[0] = te.compute((first, rows, width), lambda t, i, j: small(start[t, i, j] + x[t, i, j]), "first")
    outside = te.compute((rows, width), lambda i, j: small(x[0, i, j] * x[1, i, j]), "outside")

    def operand(made: Sequence[Tensor], point: tuple[Expr, ...]) -> Expr:
        t, i, j = point
        back = int(source.integers(1, first + 1))
        options = [
            lambda: states[int(source.integers(number_of_states))][t - back, i, j],
            lambda: states[int(source.integers(number_of_states))][t - back, i, (j + 1) % width],
            lambda: x[t + int(source.integers(0, 2)), i, j],
            lambda: outside[i, j],
            *(lambda tensor=tensor: tensor[t, i, j] for tensor in made),
        ]
        return options[int(source.integers(len(options)))]()

    made: list[Tensor] = []
    inputs = [x, start]
    for number in range(int(source.integers(0, 3))):
        if source.random() < 0.6:
            made.append(_product(source, number, made, states, shape, inputs))
        else:
            made.append(
                te.compute(
                    shape, lambda t, i, j: small(operand(made, (t, i, j)) + operand(made, (t, i, j))), f"e{number}"
                )
            )
    updates: list[Tensor] = []
    if number_of_states > 1 and source.random() < 0.5:
        updates += te.compute(
            shape,
            lambda *p: (operand(made, p), small(operand(made, p) - operand(made, p))),
            "pair",
        )
    for number in range(len(updates), number_of_states):
        own = [*made, *updates]
        updates.append(te.compute(shape, lambda *p, own=own: small(operand(own, p) + operand(own, p)), f"u{number}"))
    results = te.scan(inits, updates, states, name="scan")
    last = te.compute((rows, width), lambda i, j: results[0][steps - 1, i, j] + outside[i, j], "last")
    outputs = [result for result in results if source.random() < 0.4]
    return [*inputs, *outputs, last]


def _product(
    source: Source,
    number: int,
    made: Sequence[Tensor],
    states: Sequence[Tensor],
    shape: Sequence[int],
    inputs: list[Tensor],
) -> Tensor:
    """A state, or a stage of the step, times a matrix whose layout may be free."""
    _, _, width = shape
    dtype = states[0].dtype
    weight = te.placeholder((width, width), dtype, f"w{number}")
    inputs.append(weight)
    attrs = {"layout_free_placeholders": (weight,)} if source.random() < 0.5 else None
    left = te.reduce_axis(width, f"k{number}")
    scale = te.const(1, dtype) if dtype.startswith("int") else te.const(1.0 / (2 * width), dtype)
    of_state = not made or source.random() < 0.6
    factor, back = (states[int(source.integers(len(states)))], 1) if of_state else (made[-1], 0)
    return te.compute(
        shape,
        lambda t, i, j: te.sum(factor[t - back if back else t, i, left] * (weight[left, j] * scale), [left]),
        f"p{number}",
        attrs,
    )


def small(value: Expr) -> Expr:
    """A value of the same sign as a sum or product of small values, itself small."""
    return value % 97 if value.dtype.startswith("int") else value * te.const(0.45, value.dtype)


def judge_scan(dag: ComputeDAG, steps: tuple[Step, ...], seed: int, threads: int) -> Verdict:
    """As `judge`; however little a parallel loop of a step does, threads share it."""
    with patch.object(scan_loop, "BARRIER_CYCLES", 0):
        return judge(dag, steps, None, seed, threads)
