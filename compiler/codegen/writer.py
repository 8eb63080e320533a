"""Collects the LLVM text of one function, with loop-invariant code hoisted to the loops it depends on.

A *scope* is the body of a loop (or the function itself). Its hoisted lines run once per iteration before anything else.
An address whose loop variables are all known there is computed there and cached, so the inner loops only add constants.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Lines = list["str | Lines"]


@dataclass(slots=True)
class Scope:
    """The start of a loop body: its hoisted lines and their results."""

    lines: "Lines" = field(default_factory=list)
    known: dict[object, str] = field(default_factory=dict)


class FunctionWriter:
    """Collects the lines of a function, with unique names of values and labels. `loops`: number of finished loops."""

    def __init__(self) -> None:
        # Nested lists, so that lines hoisted later still come at the start of their loop.
        self.entry: Lines = []
        self.root: Lines = [self.entry]
        self.out: Lines = self.root
        self.scopes: list[Scope] = []
        self.label = "entry"
        self.in_block: dict[object, str] = {}
        self.loaded: dict[str, dict[object, str]] = {}
        self.loops = 0
        self._count = 0
        self.push_scope()

    def fresh(self, prefix: str = "v") -> str:
        """A new value name."""
        self._count += 1
        return f"%{prefix}{self._count}"

    def put(self, line: str) -> None:
        """Append an instruction without a result."""
        self.out.append(f"  {line}")

    def value(self, instruction: str, prefix: str = "v") -> str:
        """Append an instruction and return its result's name."""
        name = self.fresh(prefix)
        self.out.append(f"  {name} = {instruction}")
        return name

    def start_block(self, label: str) -> None:
        """Begin a basic block; the results of the last block are forgotten."""
        self.out.append(f"{label}:")
        self.label = label
        # A value of another block need not dominate this block, and memory may have changed in between.
        self.in_block.clear()
        self.loaded.clear()

    def push_scope(self) -> None:
        """Begin a scope at the current point."""
        scope = Scope()
        self.out.append(scope.lines)
        self.scopes.append(scope)

    def pop_scope(self) -> None:
        """End the innermost scope."""
        self.scopes.pop()

    def hoisted(self, depth: int, key: object, instruction: str) -> str:
        """The result of `instruction`, written once at the start of scope `depth`."""
        # The start of a scope dominates its body, so the value may be used anywhere inside.
        scope = self.scopes[depth]
        if key not in scope.known:
            name = self.fresh("h")
            scope.lines.append(f"  {name} = {instruction}")
            scope.known[key] = name
        return scope.known[key]

    @contextmanager
    def at_scope(self, depth: int) -> Iterator[Scope]:
        """Lines written inside this context, all in one block, go to the start of scope `depth`."""
        out, in_block, scope = self.out, self.in_block, self.scopes[depth]
        self.out, self.in_block = scope.lines, {}
        try:
            yield scope
        finally:
            self.out, self.in_block = out, in_block

    def once(self, key: object, instruction: str) -> str:
        """The result of `instruction`, written once in the current basic block."""
        if key not in self.in_block:
            self.in_block[key] = self.value(instruction)
        return self.in_block[key]

    def text(self) -> str:
        """All lines, with hoisted lines in their scopes."""
        flat: list[str] = []
        _flatten(self.root, flat)
        return "\n".join(flat)


def _flatten(lines: Lines, into: list[str]) -> None:
    for line in lines:
        if isinstance(line, str):
            into.append(line)
        else:
            _flatten(line, into)
