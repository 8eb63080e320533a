"""Alignment of accesses: bytes that divide the address of an element, or of the first element of a vector loop.

The indices alone prove it, whatever the values of the variables; an unknown term counts as one element.
"""

from collections.abc import Callable
from math import gcd

from retune.compiler.core.dtype import item_bytes
from retune.compiler.ir.affine import IndexForm, flat_index
from retune.compiler.ir.expr import Buffer, Expr, Var
from retune.compiler.ir.simplify import divisor
from retune.compiler.ir.visit import uses

# 128 bits, as PTX's `v4.f32`.
VECTOR_BYTES = 16
"""The longest vector that a GPU moves in one access."""
SHARED_BYTES = 1024
"""The largest alignment of a shared buffer: eight lines of 128 bytes, the swizzle period of warpgroup factors."""


def start_alignment(buffer: Buffer) -> int:
    """Bytes that divide the address of a buffer's first element."""
    # Shared buffers follow each other without gaps, by falling alignment; see `Kernel.shared_offsets`.
    return gcd(buffer.nbytes, SHARED_BYTES) if buffer.scope == "shared" else VECTOR_BYTES


def whole_alignment(buffer: Buffer) -> int:
    """Bytes that divide both the address and the size of a buffer: a block of so many bytes at a multiple of them that
    begins in the buffer ends in it.
    """
    return gcd(start_alignment(buffer), buffer.nbytes)


def first_alignment(buffer: Buffer, indices: tuple[Expr, ...], var: Var) -> int:
    """Bytes (a power of two, at most 16) that divide the distance of the element at `var` = 0 from the start of
    `buffer`; the size of an element where `var` does not run over neighbors.
    """
    item = item_bytes(buffer.dtype)
    form = flat_index(buffer.shape, indices)
    others = {atom: coefficient for atom, coefficient in form.terms.items() if atom != var}
    if form.terms.get(var, 0) != 1 or any(uses(atom, var) for atom in others):
        return item
    # gcd of all terms: a divisor of each divides every value of the sum.
    stride = gcd(form.const, *(coefficient * divisor(atom) for atom, coefficient in others.items()))
    return gcd(stride * item, VECTOR_BYTES)


def element_alignment(buffer: Buffer, form: IndexForm, known: Callable[[Expr], int | None]) -> int:
    """Bytes, at most 16, that divide the address of the element at flat index `form`; `known` gives the values of some
    variables. That many bytes from there on are in the buffer: LLVM joins accesses of neighbors, and where a neighbor
    is missing it reads all bytes of the aligned block.
    """
    offset, stride = form.const, 0
    for atom, coefficient in form.terms.items():
        value = known(atom)
        if value is None:
            stride = gcd(stride, coefficient * divisor(atom))
        else:
            offset += coefficient * value
    return gcd(gcd(offset, stride) * item_bytes(buffer.dtype), whole_alignment(buffer), VECTOR_BYTES)
