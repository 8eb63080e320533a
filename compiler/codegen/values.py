"""Immutable descriptions of what the code generator tracks: values, loop variables, buffers and addresses.

Names are LLVM's, with their sigil.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from retune.compiler.codegen.types import llvm_type
from retune.compiler.codegen.writer import Lines
from retune.compiler.ir.expr import Var


@dataclass(frozen=True, slots=True)
class Value:
    """A result in a register: its name or literal, lanes and type."""

    text: str
    lanes: int
    dtype: str

    @property
    def typed(self) -> str:
        """The operand with its LLVM type."""
        return f"{llvm_type(self.dtype, self.lanes)} {self.text}"


Emit = Callable[[str, int, str], Value]
"""Appends an instruction, given its text and the lanes and type of its result."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A loop variable in a register, known from scope `depth` inwards."""

    text: str
    depth: int


@dataclass(frozen=True, slots=True)
class LoopCounter:
    """A loop at run time that is being written."""

    counter: str
    """The register of the counter."""
    low: str
    """Its first value."""
    before: str
    """The block before the first iteration."""
    tail: str
    """The block at the end of each iteration."""
    depth: int
    """The scope of the body."""
    carried: Lines = field(default_factory=list)
    """Phis for other values that an iteration passes to the next."""
    steps: Lines = field(default_factory=list)
    """The lines that compute their next values."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """A vector variable: lane n holds `base + offset + n`."""

    base: Var | None
    offset: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Storage:
    """The memory of a buffer. `lanes` > 1: every element is a vector, an accumulator inside a vector loop. `is_roomy`:
    nothing reads past the end of the loops along its rows.
    """

    pointer: str
    lanes: int = 1
    is_roomy: bool = False


@dataclass(frozen=True, slots=True)
class Address:
    """A pointer, a constant offset in elements, and the distance between lanes (None: not constant)."""

    pointer: str
    offset: int
    stride: int | None
