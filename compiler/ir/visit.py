"""In: an expression. Out: its children, or a rebuilt expression.

Always: the only traversal code; a node that does not change is returned as it is.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from compiler.ir.expr import Binary, BinaryOp, Const, Expr, binary

_FIELDS: dict[type[Expr], tuple[str, ...]] = {}


def _child_fields(kind: Any) -> tuple[str, ...]:
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(field.name for field in fields(kind) if field.init)
    return _FIELDS[kind]


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands of a node, in field order."""
    found: list[Expr] = []
    for name in _child_fields(type(expr)):
        value = getattr(expr, name)
        if isinstance(value, Expr):
            found.append(value)
        elif isinstance(value, tuple):
            found.extend(item for item in value if isinstance(item, Expr))
    return tuple(found)


def walk(expr: Expr) -> Iterator[Expr]:
    """The node and everything below it, parents first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def transform(expr: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild from the leaves: operands first, then `rule` on the rebuilt node (None keeps it)."""
    expr = _rebuilt(expr, lambda child: transform(child, rule))
    result = rule(expr)
    return expr if result is None else result


def _rebuilt(expr: Expr, visit: Callable[[Expr], Expr]) -> Expr:
    """The node with `visit` applied to its operands; itself when none changes."""
    changes: dict[str, object] = {}
    for name in _child_fields(type(expr)):
        value = getattr(expr, name)
        if isinstance(value, Expr):
            new: object = visit(value)
        elif isinstance(value, tuple) and any(isinstance(item, Expr) for item in value):
            items = tuple(visit(item) if isinstance(item, Expr) else item for item in value)
            new = items if any(a is not b for a, b in zip(items, value, strict=True)) else value
        else:
            continue
        if new is not value:
            changes[name] = new
    if not changes:
        return expr
    rebuilt = replace(expr, **changes)  # type: ignore[type-var]
    if not isinstance(rebuilt, Binary) or _divides_by_zero(rebuilt):
        return rebuilt
    return binary(rebuilt.op, rebuilt.lhs, rebuilt.rhs)


def _divides_by_zero(node: Binary) -> bool:
    """Whether a variable that stands at 0 is divided by; the result is 0 then, or is not wanted."""
    divides = node.op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD)
    return divides and isinstance(node.rhs, Const) and node.rhs.value == 0


def substitute(expr: Expr, mapping: Mapping[Expr, Expr]) -> Expr:
    """Replace every node that is a key of `mapping`, all at once: what is put in is not looked at again."""

    def visit(node: Expr) -> Expr:
        # Looked up before it is rebuilt: a rebuilt node may fold to an operand that is a key by chance, as `0 + i`.
        return mapping[node] if node in mapping else _rebuilt(node, visit)

    return visit(expr)
