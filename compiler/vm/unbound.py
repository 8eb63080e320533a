"""Stands for what reads constants that are bound late and are not bound yet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retune.compiler.errors import MachineError
from retune.compiler.runtime.artifact import Array


@dataclass(frozen=True, slots=True)
class Unbound:
    """A callee that says what is missing."""

    name: str
    missing: tuple[str, ...]

    def __call__(self, _: Sequence[Any]) -> Sequence[Array]:
        """Raises: MachineError."""
        names = ", ".join(self.missing)
        raise MachineError(f"{self.name} reads {names}, which is bound late, and no array was given for it")
