"""Expressions: folding, promotion, value equality, printing, traversal."""

import numpy as np
import pytest

from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.affine import affine, flat_index
from retune.compiler.ir.expr import Binary, BinaryOp, Cast, Const, Expr, Var, as_expr, binary, cast, const, select
from retune.compiler.ir.visit import substitute, transform, walk

ROW, COL = Var("i"), Var("j")
X = Var("x", "float32")


def test_index_constants_fold() -> None:
    assert (const(6) * 7 + 2) // 5 % 4 == const(0)
    assert const(-7) // 2 == const(-4)
    assert const(-7) % 3 == const(2)
    assert (const(2) < 3) == const(True)
    assert ROW + 0 is ROW
    assert ROW * 1 is ROW
    assert const(0) == ROW * 0
    assert ROW // 1 is ROW
    assert const(0) == ROW % 1


def test_float_arithmetic_is_left_alone() -> None:
    assert isinstance(X * 1.0, Binary)
    assert isinstance(X + 0.0, Binary)


def test_numbers_take_the_type_of_the_other_side_and_expressions_follow_numpy() -> None:
    assert (X + 1).dtype == "float32"
    assert (X + 1).rhs == Const(1.0, "float32")  # type: ignore[attr-defined]
    assert (ROW + 1.5).dtype == "float32"
    assert (Var("a", "int32") + Var("b", "float64")).dtype == np.result_type("int32", "float64").name
    assert as_expr(np.float64(2.5)) == const(2.5)


def test_conditions_fold_and_have_no_truth_value() -> None:
    condition = ROW < 3
    assert condition.dtype == "bool"
    assert binary(BinaryOp.AND, const(True), condition) is condition
    assert binary(BinaryOp.AND, const(False), condition) == const(False)
    assert select(const(True), ROW, COL) is ROW
    with pytest.raises(DefinitionError, match="no truth value"):
        bool(condition)


def test_equality_is_structural() -> None:
    assert Var("i") + Var("j") * 2 == ROW + COL * 2
    assert ROW + COL != COL + ROW
    assert hash(ROW + COL) == hash(Var("i") + Var("j"))


def test_what_is_not_a_number_is_refused() -> None:
    with pytest.raises(DefinitionError, match="neither an expression nor a number"):
        as_expr("i")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="division by zero"):
        _ = const(1) // 0


def test_casts_of_literals_fold() -> None:
    assert cast("float32", const(3)) == Const(3.0, "float32")
    assert cast("int64", ROW) is ROW
    assert cast("int8", const(300, "int32")) == Const(44, "int8")
    assert cast("uint64", const(-1, "int8")) == Const((1 << 64) - 1, "uint64")
    assert cast("bool", const(3)) == Const(True, "bool")
    with pytest.raises(DefinitionError, match="300 is no int8"):
        cast("int8", 300)
    assert isinstance(cast("int32", ROW), Cast)


def test_printing_is_readable() -> None:
    assert str((ROW + 1) * COL % 4) == "(((i + 1) * j) % 4)"
    assert str(select(ROW < COL, X, X + 1.0)) == "select((i < j), x, (x + 1.0))"


def test_substitution_rebuilds_only_what_changes_and_folds() -> None:
    expr = (ROW + COL) * 4
    assert substitute(expr, {ROW: const(2), COL: const(3)}) == const(20)
    assert substitute(expr, {Var("k"): const(2)}) is expr
    assert [node for node in walk(expr) if isinstance(node, Var)] == [ROW, COL]

    def negate(node: Expr) -> Expr | None:
        return const(-1) if node == ROW else None

    assert transform(ROW + COL, negate) == const(-1) + COL


def test_affine_normal_form() -> None:
    form = affine((ROW * 4 + COL) - (ROW * 4) + 3)
    assert (form.const, dict(form.terms)) == (3, {COL: 1})
    kept = affine((ROW // 3) * 5 + ROW * 2)
    assert dict(kept.terms) == {ROW // 3: 5, ROW: 2}


def test_flat_index_is_row_major() -> None:
    form = flat_index((5, 6, 7), (ROW, const(2), COL + 1))
    assert (form.const, dict(form.terms)) == (2 * 7 + 1, {ROW: 42, COL: 1})
