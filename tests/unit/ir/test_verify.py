"""The verifier accepts what lowering makes and names the rule that a broken kernel breaks."""

import pytest

from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.expr import Buffer, Load, Var, const
from retune.compiler.ir.stmt import Allocate, Block, For, If, Invoke, Let, LoopFunction, LoopKind, Stmt, Store, block
from retune.compiler.ir.tensor_core import LoadMatrix
from retune.compiler.ir.verify import verify

X, Y = Buffer("x", (4,), "float32"), Buffer("y", (4,), "float32")
ACC = Buffer("acc", (), "float32", "register")
ROW = Buffer("row", (4,), "float32", "register")
I = Var("i")  # noqa: E741 - the name of the loop in the strings
COPY = Store(Y, (I,), Load(X, (I,)))


def kernel(body: Stmt) -> LoopFunction:
    return LoopFunction("k", (X, Y), (), body, 1)


def loop(body: Stmt, extent: int = 4) -> For:
    return For(I, extent, LoopKind.SERIAL, body)


@pytest.mark.parametrize(
    "body",
    [
        loop(COPY),
        block(loop(COPY), loop(COPY)),
        loop(Allocate(ACC, block(Store(ACC, (), Load(X, (I,))), Store(Y, (I,), Load(ACC, ()))))),
        Let(I, const(2), 4, If(I < 3, COPY)),
        LoadMatrix(Y, (const(0),), X, (const(0),), 4, False),
    ],
)
def test_a_sound_kernel_is_accepted(body: Stmt) -> None:
    verify(kernel(body), "a pass")


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (COPY, "i is used where nothing binds it"),
        (loop(Block(())), "a For has nothing in it"),
        (
            Allocate(ROW, loop(Store(ROW, (I + 1,), Load(X, (I,))))),
            "row, of 4 registers, is accessed from number 1 to 4",
        ),
        (block(loop(COPY), COPY), "i is used where nothing binds it"),
        (loop(loop(COPY)), "i is bound inside"),
        (loop(COPY, 0), "extent 0 of i is not positive"),
        (loop(Store(Y, (I, I), const(0.0))), "y has 1 dimensions, but is accessed with 2"),
        (loop(Store(Y, (I,), Load(X, ()))), "x has 1 dimensions, but is accessed with 0"),
        (loop(Store(X, (I,), const(0.0))), "the input x is written"),
        (loop(Store(ACC, (), const(0.0))), "acc .register. is used where it does not exist"),
        (block(loop(Allocate(ACC, COPY)), Store(Y, (const(0),), Load(ACC, ()))), "is used where it does not exist"),
        (Allocate(X, loop(COPY)), "allocated but global"),
        (loop(If(I + 1, COPY)), "is a int64"),
        (loop(Invoke("f", (X, Y, 1), frozenset({Y}))), "the function f is called inside a loop"),
        (Invoke("f", (X, ACC), frozenset({ACC})), "acc .register. is used where it does not exist"),
        (Invoke("f", (X, Y), frozenset({X})), "the input x is written"),
        (LoadMatrix(Y, (const(0),), X, (const(0),), 4, True), "matrices of float32 are transposed"),
    ],
)
def test_a_broken_rule_is_named_with_the_pass(body: Stmt, rule: str) -> None:
    with pytest.raises(LoweringError, match=f"k, after a pass: .*{rule}"):
        verify(kernel(body), "a pass")


def test_buffers_have_names_of_their_own() -> None:
    with pytest.raises(LoweringError, match="two buffers are called x"):
        verify(LoopFunction("k", (X, Buffer("x", (4,), "float32")), (), loop(COPY), 1), "a pass")
