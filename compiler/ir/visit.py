"""Traversal of expressions: children, searches, and rewrites from the leaves up.

A rewrite returns a node that does not change as it is. A node that occurs several times in an expression, as the reads
of a Winograd transform do, is rewritten once, and all its occurrences share the result.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from types import UnionType
from typing import TypeVar, get_args

from retune.compiler.core.dtype import HALVES
from retune.compiler.ir.expr import Binary, BinaryOp, Call, Cast, Const, Expr, Var, binary, cast

Node = TypeVar("Node", bound=Expr)
Item = TypeVar("Item")

_FIELDS: dict[type[Expr], tuple[str, ...]] = {}


def _child_fields(kind: type) -> tuple[str, ...]:
    """The fields of a class of nodes that may hold operands."""
    names = _FIELDS.get(kind)
    if names is None:
        # Fields that are derived, such as `dtype`, hold no operands.
        names = tuple(field.name for field in fields(kind) if field.init and not _is_plain(field.type))
        _FIELDS[kind] = names
    return names


def _is_plain(annotation: object) -> bool:
    """Whether a field of this type surely holds no expression."""
    if isinstance(annotation, UnionType):
        return all(map(_is_plain, get_args(annotation)))
    return isinstance(annotation, type) and not get_args(annotation) and not issubclass(annotation, Expr)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands of a node, in field order."""
    if type(expr) is Binary:  # most nodes with operands, and this is where lowering takes its time
        return expr.lhs, expr.rhs
    operands: list[Expr] = []
    for name in _child_fields(type(expr)):
        value = getattr(expr, name)
        if isinstance(value, Expr):
            operands.append(value)
        elif isinstance(value, tuple):
            operands.extend(item for item in value if isinstance(item, Expr))
    return tuple(operands)


def walk(expr: Expr) -> Iterator[Expr]:
    """The node and everything below it, parents first; a node that occurs several times comes as often."""
    # An explicit stack: with nested generators every node would cost its depth.
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(children(node)[::-1])


def parts(expr: Expr, below: Callable[[Expr], Sequence[Expr]] = children) -> Iterator[Expr]:
    """As `walk`, but every node comes once; `below` gives the nodes to visit after a node."""
    stack, seen = [expr], {id(expr)}
    while stack:
        node = stack.pop()
        yield node
        for child in below(node)[::-1]:
            if id(child) not in seen:
                seen.add(id(child))
                stack.append(child)


def of_type(kind: type[Item], items: Iterable[object]) -> Iterator[Item]:
    return (item for item in items if isinstance(item, kind))


def find(kind: type[Node], *exprs: Expr) -> Iterator[Node]:
    """Every node of a type in the expressions, as `walk` finds them."""
    return of_type(kind, chain.from_iterable(map(walk, exprs)))


def has(kind: type, *exprs: Expr) -> bool:
    """Whether a node of a type occurs in any of the expressions."""
    return next(find(kind, *exprs), None) is not None


def variables(*exprs: Expr) -> set[Var]:
    return set(find(Var, *exprs))


def uses(expr: Expr, *nodes: Expr) -> bool:
    """Whether any of the nodes occurs in the expression."""
    return any(node in nodes for node in walk(expr))


def transform(expr: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild from the leaves: operands first, then `rule`, which depends only on the rebuilt node (None keeps it)."""
    # By identity, which is safe since `expr` keeps its nodes alive.
    done: dict[int, Expr] = {}

    def visit(node: Expr) -> Expr:
        result = done.get(id(node))
        if result is None:
            rebuilt = _rebuilt(node, visit)
            answer = rule(rebuilt)
            result = done[id(node)] = rebuilt if answer is None else answer
        return result

    return visit(expr)


def _rebuilt(expr: Expr, visit: Callable[[Expr], Expr]) -> Expr:
    """The node with `visit` applied to its operands; itself when none changes."""
    changes: dict[str, object] = {}
    for name in _child_fields(type(expr)):
        value = getattr(expr, name)
        if isinstance(value, Expr):
            new: object = visit(value)
        elif isinstance(value, tuple):
            items = tuple([visit(item) if isinstance(item, Expr) else item for item in value])
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
    # Through `binary`, so that constant or neutral operands fold.
    return binary(rebuilt.op, rebuilt.lhs, rebuilt.rhs)


def _divides_by_zero(node: Binary) -> bool:
    """Whether the divisor is a variable at 0; the result is 0 then, or is not wanted."""
    divides = node.op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD)
    return divides and isinstance(node.rhs, Const) and node.rhs.value == 0


def replace_nodes(expr: Expr, kind: type[Node], rule: Callable[[Node], Expr | None]) -> Expr:
    """Rebuild from the leaves with `rule` applied to the nodes of one type."""
    return transform(expr, lambda node: rule(node) if isinstance(node, kind) else None)


def substitute(expr: Expr, mapping: Mapping[Expr, Expr]) -> Expr:
    """Replace every node that is a key of `mapping`, all in one pass: replacements are not searched again."""
    kinds = set(map(type, mapping))
    done: dict[int, Expr] = {}

    def visit(node: Expr) -> Expr:
        # Looked up before it is rebuilt: a rebuilt node may fold to an operand that is a key by chance, as `0 + i`.
        result = done.get(id(node))
        if result is None:
            substitute = mapping.get(node) if type(node) in kinds else None  # a large node takes long to look up
            result = done[id(node)] = _rebuilt(node, visit) if substitute is None else substitute
        return result

    return visit(expr)


def promote(expr: Expr) -> Expr:
    """`expr` in float32 where some operands have become float32: no part of it stays in 16-bit floats."""

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Const | Cast) and node.dtype in (*HALVES, "float32"):
            return cast("float32", node.value)
        return replace(node, dtype="float32") if isinstance(node, Call) and node.dtype in HALVES else None

    return transform(expr, rule)
