"""Traversals: what stands in several places of an expression is visited and rebuilt once."""

import pytest

from retune.compiler.ir.expr import Binary, BinaryOp, Buffer, Expr, Load, Var, const, select
from retune.compiler.ir.visit import parts, substitute, transform, walk

AT, J = Var("i"), Var("j")
SHARED = Load(Buffer("a", (8, 8), "float32"), (AT + 1, J))
TWICE = select(AT < 4, SHARED * 2.0, SHARED + 1.0)


def _doubled(times: int) -> Expr:
    """A sum of 2 ** times equal terms, in `times` nodes."""
    expr: Expr = SHARED
    for _ in range(times):
        expr = Binary(BinaryOp.ADD, expr, expr)
    return expr


def test_walking_goes_to_every_place_and_parts_to_every_node_parents_first() -> None:
    everything, once = list(walk(TWICE)), list(parts(TWICE))
    assert [node for node in everything if node is SHARED] == [SHARED, SHARED]
    assert once.count(SHARED) == 1
    assert [id(node) for node in once] == list(dict.fromkeys(id(node) for node in everything))
    assert everything[0] is TWICE


def test_a_rule_sees_a_shared_node_once_and_its_new_form_is_shared() -> None:
    seen: list[Expr] = []

    def rule(node: Expr) -> Expr | None:
        seen.append(node)
        return Load(node.buffer, (node.indices[0], const(0))) if isinstance(node, Load) else None

    found = transform(_doubled(60), rule)
    assert len(seen) < 70
    loads = [node for node in parts(found) if isinstance(node, Load)]
    assert [str(load) for load in loads] == ["a[(i + 1), 0]"]
    assert str(transform(TWICE, rule)) == "select((i < 4), (a[(i + 1), 0] * 2.0), (a[(i + 1), 0] + 1.0))"


def test_replacement_is_not_visited_again() -> None:
    assert str(substitute(TWICE, {AT: J, J: AT})) == "select((j < 4), (a[(j + 1), i] * 2.0), (a[(j + 1), i] + 1.0))"
    assert substitute(TWICE, {SHARED: const(1.0), AT: J}) == select(J < 4, const(1.0) * 2.0, const(1.0) + 1.0)
    assert len(list(parts(substitute(_doubled(60), {AT: J})))) < 70


@pytest.mark.parametrize("mapping", [{}, {Var("k"): AT}])
def test_what_does_not_change_is_returned_as_it_is(mapping: dict[Expr, Expr]) -> None:
    assert substitute(TWICE, mapping) is TWICE
    assert transform(TWICE, lambda _: None) is TWICE
