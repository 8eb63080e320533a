"""Immutable descriptions of what the code generator tracks: values, loop variables, buffers and addresses.

Names are LLVM's, with their sigil.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from retune.compiler.codegen.types import llvm_type
from retune.compiler.ir.expr import Var
from retune.compiler.ir.stmt import Allocate


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


Lines = list["str | Lines"]
"""LLVM text. Nested lists, so that lines added later still come at the start of their loop."""


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """A loop at run time whose body is being written."""

    low: str
    """The first value of its counter."""
    before: str
    """The block before the first iteration."""
    tail: str
    """The block at the end of each iteration."""
    carried: Lines = field(default_factory=list)
    """Phis for other values that an iteration passes to the next."""
    steps: Lines = field(default_factory=list)
    """The lines that compute their next values."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A variable in a register, known from scope `depth` inwards; `loop` is the loop whose counter it is."""

    text: str
    depth: int
    loop: OpenLoop | None = field(default=None, compare=False)
    is_size: bool = False
    """Whether it is an extent that a call passes."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """A vector variable: lane n holds `base + offset + n`."""

    base: Var | None
    offset: int
    lanes: int


Binding = int | Scalar | Ramp
"""What a variable is: a literal of an unrolled loop, a register, or lanes of a vector loop."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The memory of a buffer. `lanes` > 1: every element is a vector, an accumulator inside a vector loop. `scope`
    allocates it, if it is on the stack. A buffer `is_streamed` that is read in the order of its addresses, from beyond
    the caches at first.
    """

    pointer: str
    lanes: int = 1
    scope: Allocate | None = None
    is_streamed: bool = False


@dataclass(frozen=True, slots=True)
class Address:
    """A pointer, a constant offset in elements, and the distance between lanes (None: not constant)."""

    pointer: str
    offset: int
    stride: int | None
