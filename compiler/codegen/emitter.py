"""`Emitter`: the context in which code is emitted, with the variables, buffers and vector lanes in scope.

An emitter is immutable: a nested scope gets an emitter of its own, so nothing is restored at its end.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from retune.compiler.codegen.subtarget import Subtarget
from retune.compiler.codegen.types import llvm_type
from retune.compiler.codegen.values import Binding, Ramp, Storage, Value
from retune.compiler.codegen.writer import FunctionWriter
from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.expr import Buffer, Expr, Load, Var
from retune.compiler.ir.visit import parts, walk

T = TypeVar("T")


class Memo:
    """Answers of functions about trees, found by the identity of the trees: comparing them takes longer than most
    functions.
    """

    def __init__(self) -> None:
        self._answers: dict[object, tuple[Any, tuple[object, ...]]] = {}

    def __call__(self, function: Callable[..., T], *trees: object) -> T:
        """`function(*trees)`, computed once, for at most two trees."""
        key = function, id(trees[0]), id(trees[-1])
        answer = self._answers.get(key)
        if answer is None:
            # Kept alive with the answer, so that no other object gets the identity of a tree.
            answer = self._answers[key] = function(*trees), trees
        value: T = answer[0]
        return value


@dataclass(frozen=True, eq=False)
class Emitter(ABC):
    """Emits code at one place of the loops, where variables and buffers are what `env` and `storage` say; `replace`
    makes the emitter of a place further inside. All emitters of a function share `writer` and `memo`.
    """

    writer: FunctionWriter
    subtarget: Subtarget
    storage: Mapping[Buffer, Storage]
    env: Mapping[Var, Binding] = field(default_factory=dict)
    vector: Var | None = None
    """The variable of the vector loop around this place."""
    mask: Value | None = None
    """The active lanes; None: all."""
    active: int | None = None
    """How many lanes are active, the first ones, if that is a literal."""
    memo: Memo = field(default_factory=Memo)

    def replace(self, **changes: object) -> Self:
        """The emitter with other fields."""
        # As `dataclasses.replace`, which takes several times as long, because it calls the constructor.
        inside = object.__new__(type(self))
        vars(inside).update(vars(self), **changes)
        return inside

    def bind(self, var: Var, binding: Binding) -> Self:
        """The emitter of a place where `var` is `binding`."""
        return self.replace(env={**self.env, var: binding})

    def bind_lanes(self, var: Var, ramp: Ramp, mask: Value | None = None, active: int | None = None) -> Self:
        """The emitter of a place inside the vector loop of `var`."""
        return self.replace(env={**self.env, var: ramp}, vector=var, mask=mask, active=active)

    def binding(self, atom: Expr) -> Binding | None:
        """What a variable is here; None for any other expression."""
        return self.env.get(atom) if isinstance(atom, Var) else None

    def ramp(self) -> Ramp | None:
        """The lanes of the vector loop around this place."""
        ramp = None if self.vector is None else self.env.get(self.vector)
        return ramp if isinstance(ramp, Ramp) else None

    @abstractmethod
    def evaluate(self, expr: Expr) -> Value:
        """Write the instructions of an expression."""

    def lanes_of(self, exprs: tuple[Expr, ...]) -> int:
        """Lanes of the active vector loop if any of the expressions moves with it, else 1."""
        ramp = self.ramp()
        return ramp.lanes if ramp is not None and self.memo(_has_part, exprs, self.vector) else 1

    def lanes_in(self, expr: Expr) -> int:
        """Lanes of an expression's value."""
        stored = (self.storage[node.buffer].lanes for node in walk(expr) if isinstance(node, Load))
        return max(self.lanes_of((expr,)), *stored, 1)

    def each_lane(self) -> list[Self]:
        """The emitters of the active lanes, each with a vector of one lane."""
        ramp = self.ramp()
        assert self.vector is not None
        assert ramp is not None
        if self.mask is not None and self.active is None:
            raise LoweringError("lanes under a mask that is computed do not lie side by side")
        lanes = range(ramp.lanes if self.active is None else self.active)
        return [self.bind_lanes(self.vector, Ramp(ramp.base, ramp.offset + lane, 1)) for lane in lanes]

    def mask_of(self, lanes: int) -> Value | None:
        """The mask of a memory access of `lanes` lanes."""
        return self.mask if lanes > 1 else None

    def result(self, instruction: str, lanes: int, dtype: str) -> Value:
        """Append an instruction with a result."""
        return Value(self.writer.value(instruction), lanes, dtype)

    def splat(self, value: Value, lanes: int) -> Value:
        if value.lanes == lanes:
            return value
        if value.lanes != 1:
            raise LoweringError(f"a vector of {value.lanes} lanes meets another of {lanes}")
        if not value.text.startswith("%"):
            return Value(f"splat ({value.typed})", lanes, value.dtype)
        kind = llvm_type(value.dtype, lanes)
        key = ("splat", value.text, lanes)
        if key not in self.writer.in_block:
            # LLVM's idiom of a splat, which selection turns into one broadcast.
            first = self.writer.value(f"insertelement {kind} poison, {value.typed}, i64 0")
            zeros = f"<{lanes} x i32> zeroinitializer"
            self.writer.in_block[key] = self.writer.value(f"shufflevector {kind} {first}, {kind} poison, {zeros}")
        return Value(self.writer.in_block[key], lanes, value.dtype)

    def align(self, values: Sequence[Value]) -> list[Value]:
        lanes = max(value.lanes for value in values)
        return [self.splat(value, lanes) for value in values]


def _has_part(exprs: tuple[Expr, ...], var: Var) -> bool:
    return any(node == var for expr in exprs for node in parts(expr))
