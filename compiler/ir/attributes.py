"""Attributes of operations, with checked access by type."""

from collections.abc import Mapping

from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.dims import Dim

Attribute = int | float | bool | str | tuple[int, ...]
Shape = tuple[int, ...]


class Attributed:
    """Typed access to `attrs`. Raises: DefinitionError when an attribute is absent or of another type."""

    __slots__ = ()
    attrs: Mapping[str, Attribute]

    def ints(self, key: str) -> tuple[int, ...]:
        value = self.attrs.get(key)
        if not isinstance(value, tuple):
            raise self._wrong(key, "a tuple of ints")
        return value

    def integer(self, key: str) -> int:
        value = self.attrs.get(key)
        if not isinstance(value, int | Dim):
            raise self._wrong(key, "an int")
        return value

    def number(self, key: str) -> float:
        value = self.attrs.get(key)
        if not isinstance(value, int | float):
            raise self._wrong(key, "a number")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.attrs.get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "a bool")
        return value

    def text(self, key: str) -> str:
        value = self.attrs.get(key)
        if not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def _wrong(self, key: str, wanted: str) -> DefinitionError:
        return DefinitionError(f"{self}: attribute {key!r} must be {wanted}")
