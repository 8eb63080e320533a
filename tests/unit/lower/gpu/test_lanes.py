"""What is proved of indices and conditions in the lanes of a vector: never more than is true."""

import numpy as np
import pytest

from retune.compiler.ir.expr import Binary, BinaryOp, Expr, Var, binary, const
from retune.compiler.ir.numeric import BINARY
from retune.compiler.ir.simplify import divisor
from retune.compiler.ir.visit import substitute
from retune.compiler.lower.gpu.lanes import stride, uniform
from tests.support.tiers import long_except

V, A, B = Var("v"), Var("a"), Var("b")


def value(expr: Expr, **known: int) -> int:
    """An expression at a point."""
    found = substitute(expr, {Var(name): const(number) for name, number in known.items()})
    if isinstance(found, Binary):
        return int(BINARY[found.op](np.asarray(value(found.lhs)), np.asarray(value(found.rhs))))
    return int(found.value)  # type: ignore[attr-defined]


def drawn(rng: np.random.Generator, depth: int) -> Expr:
    """A random index over v, a and b."""
    if depth == 0:
        return [V, A * 4, A * 8, B, const(int(rng.integers(-8, 9)))][int(rng.integers(5))]
    kind = int(rng.integers(5))
    inner = drawn(rng, depth - 1)
    if kind < 2:
        return inner + drawn(rng, depth - 1) if kind else inner - drawn(rng, depth - 1)
    number = int(rng.choice([2, 3, 4, 8, 12, 16]))
    return (inner * number, inner // number, inner % number)[kind - 2]


POINTS = [(a, b) for a in range(5) for b in range(4)]


@pytest.mark.parametrize("shard", long_except([0], range(5)))
def test_what_is_proved_holds(shard: int) -> None:
    rng = np.random.default_rng(shard)
    proved = {"divisor": 0, "stride": 0, "uniform": 0}
    for _ in range(300):
        index = drawn(rng, int(rng.integers(4)))
        width = int(rng.choice([2, 4, 8]))
        whole, step = divisor(index), stride(index, V, width)
        condition = binary([BinaryOp.LT, BinaryOp.LE][int(rng.integers(2))], index, drawn(rng, int(rng.integers(3))))
        same = uniform(condition, V, width)
        proved["divisor"] += whole > 1
        proved["stride"] += step == 1
        proved["uniform"] += same
        for a, b in POINTS:
            values = [value(index, v=v, a=a, b=b) for v in range(width)]
            assert all(each % whole == 0 if whole else each == 0 for each in values), f"{index} by {whole}"
            if step is not None:
                assert values == [values[0] + step * v for v in range(width)], f"{index} moves by {step}"
            if same:
                held = {bool(value(condition, v=v, a=a, b=b)) for v in range(width)}
                assert len(held) == 1, f"{condition} in {width} lanes"
    assert min(proved.values()) > 20


@pytest.mark.parametrize(
    ("index", "width", "step"),
    [
        ((A * 8 + V) // 32, 8, 0),
        ((A * 8 + V) % 32, 8, 1),
        ((A * 8 + V) % 12, 8, None),
        ((A * 4 + V) % 32, 8, None),
        ((A * 4 + V) % 12, 4, 1),
        (A * 40 + V, 8, 1),
        (V * 3 + A, 4, 3),
        ((A * 8 + V) // 32 * 40 + (A * 8 + V) % 32, 8, 1),
    ],
)
def test_neighbors_of_gathered_tiles_are_seen(index: Expr, width: int, step: int | None) -> None:
    assert stride(index, V, width) == step


@pytest.mark.parametrize(
    ("condition", "width", "same"),
    [
        (A * 8 + V < 24, 8, True),
        (A * 8 + V < 25, 8, False),
        (A * 8 + V < 28, 4, True),
        (const(8) <= A * 8 + V, 8, True),
        (const(9) <= A * 8 + V, 8, False),
        (B < 3, 8, True),
        (binary(BinaryOp.AND, B < 3, A * 4 + V < 8), 4, True),
        (binary(BinaryOp.AND, B < 3, A * 4 + V < 9), 4, False),
    ],
)
def test_lanes_agree_where_tiles_end_between_them(condition: Expr, width: int, same: bool) -> None:
    assert uniform(condition, V, width) is same
