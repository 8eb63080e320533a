"""In: a graph operation with tensors for its operands. Out: typed access to operands and attributes.

Always: a misfit names the operation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from retune.compiler.errors import DefinitionError
from retune.compiler.ir.expr import Const, Expr, cast
from retune.compiler.te.tensor import Tensor

Attribute = int | float | bool | str | tuple[int, ...]
Operand = Tensor | Const


@dataclass(frozen=True, slots=True)
class OpCall:
    """One operation to be written as tensor expressions.

    `operands` are tensors, or literals for constants of a single element; `shape` and `dtype` are those of the result;
    `name` names the computes; `constants` are the tensors whose values are known before the network runs, so that a
    kernel may ask for them in a layout of its own.
    """

    op: str
    operands: tuple[Operand, ...]
    attrs: Mapping[str, Attribute]
    shape: tuple[int, ...]
    dtype: str
    name: str
    constants: frozenset[Tensor] = field(default_factory=frozenset)

    def tensor(self, place: int) -> Tensor:
        """Operand number `place`, which must be a tensor."""
        operand = self.operands[place]
        if not isinstance(operand, Tensor):
            raise DefinitionError(
                f"{self.name}: operand {place} of {self.op} must be a tensor, not the literal {operand}"
            )
        return operand

    def element(self, place: int, indices: tuple[Expr, ...]) -> Expr:
        """The element of operand `place` that belongs to the result's element `indices`, by NumPy broadcasting."""
        operand = self.operands[place]
        if not isinstance(operand, Tensor):
            return operand
        skipped = len(self.shape) - len(operand.shape)
        own = zip(indices[skipped:], self.shape[skipped:], operand.shape, strict=True)
        return operand[tuple(index if extent == wanted else 0 for index, wanted, extent in own)]

    def product(self, one: Expr, other: Expr) -> Expr:
        """The product of two elements in the dtype of the result, in which it is summed."""
        wide = [value if value.dtype == self.dtype else cast(self.dtype, value) for value in (one, other)]
        return wide[0] * wide[1]

    def ints(self, key: str) -> tuple[int, ...]:
        """The attribute `key`, a tuple of ints."""
        value = self.attrs.get(key)
        if not isinstance(value, tuple):
            raise self._misfit(key, "a tuple of ints")
        return value

    def pair(self, key: str) -> tuple[int, int]:
        """The attribute `key`, two ints."""
        value = self.ints(key)
        if len(value) != 2:
            raise self._misfit(key, "two ints")
        return value[0], value[1]

    def integer(self, key: str) -> int:
        """The attribute `key`, an int."""
        value = self.attrs.get(key)
        if not isinstance(value, int):
            raise self._misfit(key, "an int")
        return value

    def number(self, key: str) -> float:
        """The attribute `key`, a number."""
        value = self.attrs.get(key)
        if not isinstance(value, int | float):
            raise self._misfit(key, "a number")
        return float(value)

    def text(self, key: str) -> str:
        """The attribute `key`, a string."""
        value = self.attrs.get(key)
        if not isinstance(value, str):
            raise self._misfit(key, "a string")
        return value

    def layout_free(self, place: int) -> dict[str, tuple[Tensor, ...]]:
        """Compute attributes that let the kernel choose the layout of operand `place`, when its value is known."""
        operand = self.operands[place]
        return {"layout_free_placeholders": (operand,)} if operand in self.constants else {}

    def _misfit(self, key: str, wanted: str) -> DefinitionError:
        return DefinitionError(
            f"{self.name}: attribute {key!r} of {self.op} must be {wanted}, not {self.attrs.get(key)!r}"
        )
