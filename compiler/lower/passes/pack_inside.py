"""Pack constants inside of the kernel, before the first statement that reads them, once a call, by all threads.

before: packed B: [4, 2, 4] by [1, 0, 2];   … B[x] …
after:  parallel d1: for d0: vector d2: B.packed[…] = B[…];   … B.packed[x] …
"""

import math
from dataclasses import dataclass, replace

from retune.compiler.ir.expr import INDEX, Buffer, Expr, Load, Var, const, select
from retune.compiler.ir.rewrite import redirect
from retune.compiler.ir.stmt import For, Let, LoopFunction, LoopKind, Stmt, Store, block
from retune.compiler.packing import Packing


@dataclass(frozen=True, slots=True)
class PackInside:
    """Replaces every packing by loops at the start of the kernel and a buffer in its workspace."""

    name: str = "pack-inside"

    def apply(self, function: LoopFunction) -> LoopFunction:
        """The kernel without `packings`."""
        params = {param.name: param for param in function.params}
        for name, packing in function.packings:
            # In the same order it would be a mere copy.
            if packing.extents or not _keeps_order(packing):
                function = _packing_itself(function, params[name], packing)
        return replace(function, packings=())


def _keeps_order(packing: Packing) -> bool:
    moving = [place for place in packing.order if packing.dims[place] > 1]
    return moving == sorted(moving)


def _packing_itself(function: LoopFunction, param: Buffer, packing: Packing) -> LoopFunction:
    packed = Buffer(f"{param.name}.packed", param.shape, param.dtype, "workspace")
    given = Buffer(param.name, packing.extents, param.dtype, param.scope) if packing.extents else param

    body = redirect(function.body, lambda buffer, indices: (packed, indices) if buffer == param else None)
    return replace(
        function,
        params=tuple(given if other == param else other for other in function.params),
        workspace=(*function.workspace, packed),
        body=block(_packing_loops(given, packed, packing), body),
    )


def _given(param: Buffer, packing: Packing, digits: list[Var]) -> Expr:
    """The element that the digits name, or zero where there is none."""
    if not packing.extents:
        return Load(param, (_position(packing.dims, digits),))
    indices: list[Expr] = []
    first = 0
    for own in packing.digits:
        indices.append(_position(own, digits[first : first + len(own)]))
        first += len(own)
    value: Expr = Load(param, tuple(indices))
    for index, extent, wide in zip(indices, packing.extents, packing.padded, strict=True):
        value = select(index < extent, value, const(0, param.dtype)) if wide > extent else value
    return value


def _packing_loops(param: Buffer, packed: Buffer, packing: Packing) -> Stmt:
    """Loops over the packed digits in their own order; the outer ones run in parallel as one."""
    digits = [Var(f"{packed.name}.{place}", INDEX) for place in range(len(packing.dims))]
    target = _position(packing.shape, [digits[place] for place in packing.order])
    stmt: Stmt = Store(packed, (target,), _given(param, packing, digits))
    fused = _fused_count(len(packing.dims))
    last = len(packing.dims) - 1
    for level in range(last, fused - 1, -1):
        place = packing.order[level]
        contiguous = level == last and place == last
        stmt = For(digits[place], packing.dims[place], LoopKind.VECTOR if contiguous else LoopKind.SERIAL, stmt)
    outer = packing.order[:fused]
    together = Var(f"{packed.name}.outer", INDEX)
    stride = 1
    for place in reversed(outer):
        value = together // stride
        value = value if place == outer[0] else value % packing.dims[place]
        stmt = Let(digits[place], value, packing.dims[place], stmt)
        stride *= packing.dims[place]
    return For(together, math.prod(packing.dims[place] for place in outer), LoopKind.PARALLEL, stmt)


def _fused_count(rank: int) -> int:
    """How many outer loops run in parallel: enough to share the work, and no innermost one."""
    # TVM's numbers for its layout transform stage.
    return 3 if rank >= 5 else 2 if rank >= 3 else 1


def _position(extents: tuple[int, ...], digits: list[Var]) -> Expr:
    total: Expr = const(0, INDEX)
    for extent, digit in zip(extents, digits, strict=True):
        total = total * extent + digit
    return total
