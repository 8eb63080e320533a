"""The syntax of our sources, for tests that look at all of them: each file is parsed once for all questions."""

import ast
from functools import cache
from pathlib import Path

ENVIRONMENT = ("environ", "getenv", "putenv")
"""What reads or changes the environment, in `os`."""


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """The imports, the calls, the uses of the environment and the strings that begin with our name, in a file."""
    return tuple(node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if _is_asked_for(node))


def _is_asked_for(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=str(text)):
            return text.startswith("retune")
        case ast.Attribute(attr=attr):
            return attr in ENVIRONMENT
    return isinstance(node, ast.Import | ast.ImportFrom | ast.Call)


def name_of(node: ast.expr) -> str:
    """An expression as text; the dotted names that nearly all called functions have take no time."""
    words: list[str] = []
    part = node
    while isinstance(part, ast.Attribute):
        words.append(part.attr)
        part = part.value
    return ".".join([part.id, *reversed(words)]) if isinstance(part, ast.Name) else ast.unparse(node)
