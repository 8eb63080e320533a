"""Pack constants inside of the kernel, before the first statement that reads them, once a call, by all threads.

before: packed B: [4, 2, 4] by [1, 0, 2];   … B[x] …
after:  parallel d1: for d0: vector d2: B.packed[…] = B[…];   … B.packed[x] …
"""

import math
from dataclasses import replace

from retune.compiler.core.packing import Packing
from retune.compiler.ir.expr import INDEX, Buffer, Expr, Load, Var, const, select
from retune.compiler.ir.rewrite import redirect
from retune.compiler.ir.stmt import For, Let, LoopFunction, LoopKind, Stmt, Store, block


def pack_inside(function: LoopFunction) -> LoopFunction:
    """Replace every packing by loops at the start of the kernel and a buffer in its workspace."""
    params = {param.name: param for param in function.params}
    for name, packing in function.packings:
        # In the same order it would be a mere copy.
        if packing.extents or not _keeps_order(packing):
            function = _packing_itself(function, params[name], packing)
    return replace(function, packings=())


def _keeps_order(packing: Packing) -> bool:
    moving = [dim for dim in packing.order if packing.dims[dim] > 1]
    return moving == sorted(moving)


def _packing_itself(function: LoopFunction, param: Buffer, packing: Packing) -> LoopFunction:
    packed = Buffer(f"{param.name}.packed", param.shape, param.dtype, "workspace")
    original = Buffer(param.name, packing.extents, param.dtype, param.scope) if packing.extents else param

    body = redirect(function.body, lambda buffer, indices: (packed, indices) if buffer == param else None)
    return replace(
        function,
        params=tuple(original if old == param else old for old in function.params),
        workspace=(*function.workspace, packed),
        body=block(_packing_loops(original, packed, packing), body),
    )


def _element(param: Buffer, packing: Packing, digits: list[Var]) -> Expr:
    """The element with these digits, or zero in the padding."""
    if not packing.extents:
        return Load(param, (_position(packing.dims, digits),))
    indices: list[Expr] = []
    first = 0
    for dim_digits in packing.digits:
        indices.append(_position(dim_digits, digits[first : first + len(dim_digits)]))
        first += len(dim_digits)
    value: Expr = Load(param, tuple(indices))
    for index, extent, padded in zip(indices, packing.extents, packing.padded, strict=True):
        value = select(index < extent, value, const(0, param.dtype)) if padded > extent else value
    return value


def _packing_loops(param: Buffer, packed: Buffer, packing: Packing) -> Stmt:
    """Loops over the packed digits in their own order; the outer loops run in parallel as one."""
    digits = [Var(f"{packed.name}.{dim}", INDEX) for dim in range(len(packing.dims))]
    target = _position(packing.shape, [digits[dim] for dim in packing.order])
    stmt: Stmt = Store(packed, (target,), _element(param, packing, digits))
    fused = _fused_count(len(packing.dims))
    last = len(packing.dims) - 1
    for level in range(last, fused - 1, -1):
        dim = packing.order[level]
        contiguous = level == last and dim == last
        stmt = For(digits[dim], packing.dims[dim], LoopKind.VECTOR if contiguous else LoopKind.SERIAL, stmt)
    outer = packing.order[:fused]
    outer_var = Var(f"{packed.name}.outer", INDEX)
    stride = 1
    for dim in reversed(outer):
        value = outer_var // stride
        value = value if dim == outer[0] else value % packing.dims[dim]
        stmt = Let(digits[dim], value, packing.dims[dim], stmt)
        stride *= packing.dims[dim]
    return For(outer_var, math.prod(packing.dims[dim] for dim in outer), LoopKind.PARALLEL, stmt)


def _fused_count(rank: int) -> int:
    """The number of outer loops that run in parallel: enough to share the work, and no innermost loop."""
    # TVM's numbers for its layout transform stage.
    return 3 if rank >= 5 else 2 if rank >= 3 else 1


def _position(extents: tuple[int, ...], digits: list[Var]) -> Expr:
    total: Expr = const(0, INDEX)
    for extent, digit in zip(extents, digits, strict=True):
        total = total * extent + digit
    return total
