"""Collects the LLVM text of one function, with loop-invariant code hoisted to the loops it depends on.

A *scope* is the body of a loop (or the function itself). Its hoisted lines run once per iteration before anything else.
An address whose loop variables are all known there is computed there and cached, so the inner loops only add constants.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from itertools import count

from retune.compiler.codegen.values import Lines, OpenLoop, Scalar


@dataclass(slots=True)
class Scope:
    """The start of a loop body: its hoisted lines and their results."""

    lines: Lines = field(default_factory=list)
    known: dict[object, str] = field(default_factory=dict)


class FunctionWriter:
    """Collects the lines of a function, with unique names of values and labels. `loop_numbers` number the metadata that
    align innermost loops, if they are to be aligned. `stack_bytes`: the size of the buffers on the stack.
    """

    def __init__(self, loop_numbers: Iterator[int] | None = None) -> None:
        self.entry: Lines = []
        self.root: Lines = [self.entry]
        self.out: Lines = self.root
        self.scopes: list[Scope] = []
        self.label = "entry"
        self.in_block: dict[object, str] = {}
        self.loaded: dict[str, dict[object, str]] = {}
        self.stack_bytes = 0
        self._loop_numbers = loop_numbers
        self._finished_loops = 0
        self._numbers = count(1)
        self._push_scope()

    def fresh(self, prefix: str = "v") -> str:
        return f"%{prefix}{next(self._numbers)}"

    def put(self, line: str) -> None:
        """Append an instruction without a result."""
        self.out.append(f"  {line}")

    def value(self, instruction: str, prefix: str = "v") -> str:
        """Append an instruction and return its result's name."""
        name = self.fresh(prefix)
        self.out.append(f"  {name} = {instruction}")
        return name

    def alloca(self, prefix: str, kind: str) -> str:
        """The pointer to memory of the LLVM type `kind` on the stack."""
        pointer = self.fresh(prefix)
        # In the entry block LLVM gives an alloca a fixed frame slot; inside a loop it would grow the stack each time.
        self.entry.append(f"  {pointer} = alloca {kind}, align 64")
        return pointer

    def start_block(self, label: str) -> None:
        """Begin a basic block; the results of the last block are forgotten."""
        self.out.append(f"{label}:")
        self.label = label
        # A value of another block need not dominate this block, and memory may have changed in between.
        self.in_block.clear()
        self.loaded.clear()

    def _push_scope(self) -> None:
        scope = Scope()
        self.out.append(scope.lines)
        self.scopes.append(scope)

    @contextmanager
    def scope(self) -> Iterator[int]:
        """A scope from the current point to the end of the context; yields its depth."""
        self._push_scope()
        yield len(self.scopes) - 1
        self.scopes.pop()

    @contextmanager
    def loop(self, low: str, high: str) -> Iterator[Scalar]:
        """A loop at run time from `low` to `high`, which is larger, around what is written in the context; yields its
        counter.
        """
        name = self.fresh("i")
        head, tail, done = f"head{name[1:]}", f"tail{name[1:]}", f"done{name[1:]}"
        loop = OpenLoop(low, self.label, tail)
        self.put(f"br label %{head}")
        self.start_block(head)
        self.put(f"{name} = phi i64 [ {low}, %{loop.before} ], [ {name}.next, %{tail} ]")
        finished = self._finished_loops
        self.out.append(loop.carried)
        with self.scope() as depth:
            yield Scalar(name, depth, loop)
            self.put(f"br label %{tail}")
            self.start_block(tail)
            self.out.append(loop.steps)
            self.put(f"{name}.next = add nuw nsw i64 {name}, 1")
            # Tested at the end: a loop has at least one iteration, so the entry needs no branch.
            self.put(f"{name}.more = icmp ult i64 {name}.next, {high}")
            numbers = self._loop_numbers if self._finished_loops == finished else None  # of innermost loops alone
            metadata = "" if numbers is None else f", !llvm.loop !{next(numbers)}"
            self.put(f"br i1 {name}.more, label %{head}, label %{done}{metadata}")
            self._finished_loops += 1
        self.start_block(done)

    def hoist(self, depth: int, key: object, instruction: str) -> str:
        """The result of `instruction`, written once at the start of scope `depth`."""
        # The start of a scope dominates its body, so the value may be used anywhere inside.
        scope = self.scopes[depth]
        if key not in scope.known:
            name = self.fresh("h")
            scope.lines.append(f"  {name} = {instruction}")
            scope.known[key] = name
        return scope.known[key]

    def at_scope(self, depth: int) -> "FunctionWriter":
        """A writer of the same function whose lines, all in one block, go to the start of scope `depth`."""
        hoisting = copy(self)
        hoisting.out, hoisting.in_block = self.scopes[depth].lines, {}
        return hoisting

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
