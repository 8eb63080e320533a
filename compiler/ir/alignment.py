"""Alignment of accesses: bytes that divide the address of an element, or of the first one of a vector loop.

It is proved from the indices alone, whatever the values of the variables; what is not known counts as one element.
"""

from collections.abc import Callable
from math import gcd

from retune.compiler.dtype import item_bytes
from retune.compiler.ir.affine import IndexForm, flat_index
from retune.compiler.ir.expr import Buffer, Expr, Var
from retune.compiler.ir.simplify import divisor
from retune.compiler.ir.visit import uses

# 128 bits, as PTX's `v4.f32`.
VECTOR_BYTES = 16
"""The longest vector that a GPU moves at once."""
SHARED_BYTES = 1024
"""The largest alignment of a shared buffer: eight lines of 128 bytes, in which factors of warpgroups are swizzled."""


def start_alignment(buffer: Buffer) -> int:
    """Bytes that divide the address of a buffer's first element."""
    # Shared buffers stand without gaps, those of the largest alignment first, see `Kernel.shared_places`.
    return gcd(buffer.nbytes, SHARED_BYTES) if buffer.scope == "shared" else VECTOR_BYTES


def whole_alignment(buffer: Buffer) -> int:
    """Bytes that divide the address of a buffer's first element and the size of the buffer: a piece of memory of so
    many bytes, at a multiple of them, that begins in the buffer ends in it too.
    """
    return gcd(start_alignment(buffer), buffer.nbytes)


def first_alignment(buffer: Buffer, indices: tuple[Expr, ...], var: Var) -> int:
    """A power of two, at most 16: so many bytes divide the distance of the element at `var` = 0 from the buffer's
    start. The size of an element where `var` does not run over neighbors.
    """
    item = item_bytes(buffer.dtype)
    form = flat_index(buffer.shape, indices)
    rest = {atom: coefficient for atom, coefficient in form.terms.items() if atom != var}
    if form.terms.get(var, 0) != 1 or any(uses(atom, var) for atom in rest):
        return item
    # gcd of all terms: a divisor of each divides every value of the sum.
    apart = gcd(form.const, *(coefficient * divisor(atom) for atom, coefficient in rest.items()))
    return gcd(apart * item, VECTOR_BYTES)


def element_alignment(buffer: Buffer, form: IndexForm, known: Callable[[Expr], int | None]) -> int:
    """Bytes, at most 16, that divide the address of the element at a flat index, where `known` gives the values that
    some variables have. From there on so many bytes lie in the buffer: where LLVM joins accesses of neighbors and
    there is a gap, or one too few, it reads all the bytes that are aligned together.
    """
    place, apart = form.const, 0
    for atom, coefficient in form.terms.items():
        value = known(atom)
        if value is None:
            apart = gcd(apart, coefficient * divisor(atom))
        else:
            place += coefficient * value
    return gcd(gcd(place, apart) * item_bytes(buffer.dtype), whole_alignment(buffer), VECTOR_BYTES)
