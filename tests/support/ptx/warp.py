"""Results of PTX instructions that involve a whole warp, for its 32 lanes.

Layouts follow NVIDIA's PTX ISA and are written independently of the compiler, so that neither can hide an error of the
other.
"""

import numpy as np
from numpy.typing import NDArray

from tests.support.ptx.program import PtxError
from tests.support.ptx.values import Bits, from_bfloat16

LANES = np.arange(32)
_GROUP, _PLACE = LANES // 4, LANES % 4
_NOWHERE = np.uint64(0x7FC0DEAD)
"""What a lane gets from one that the block lacks: nobody may count on it."""


def shuffled(mode: str, values: Bits, step: int, clamp: int, members: int, text: str) -> Bits:
    """`shfl.sync` of the first lanes of a warp, as many as `values` are."""
    if members != (1 << len(values)) - 1:
        raise PtxError(f"the mask {members:#x} for {len(values)} lanes: {text}")
    lane = np.arange(len(values))
    segment, last = clamp >> 8 & 31, clamp & 31
    end = (lane & segment) | (last & ~segment)
    there = {"down": lane + step, "idx": (lane & segment) | (step & ~segment), "bfly": lane ^ step}[mode]
    source = np.where(there <= end, there, lane)
    given = np.append(values, np.full(32, _NOWHERE))
    return np.asarray(given[source])


def loaded_matrices(rows: NDArray[np.uint16], count: int, *, transposed: bool) -> list[Bits]:
    """`ldmatrix`: registers of `count` matrices of 8 rows of 8 halves each."""
    found = []
    for number in range(count):
        matrix = rows[8 * number : 8 * number + 8].astype(np.uint64)
        matrix = matrix.T if transposed else matrix
        low, high = matrix[_GROUP, 2 * _PLACE], matrix[_GROUP, 2 * _PLACE + 1]
        found.append(low | high << np.uint64(16))
    return found


def multiplied(shape: str, kind: str, left: list[Bits], right: list[Bits], sums: list[Bits]) -> list[Bits]:
    """`mma.sync`: the registers of 16 x 8 sums."""
    deep = shape == "m16n8k16"
    depth = 16 if deep else 8
    one, other = np.zeros((16, depth)), np.zeros((depth, 8))
    for number, register in enumerate(left):
        row, start = _GROUP + 8 * (number % 2), depth // 2 * (number // 2)
        for half in range(2 if deep else 1):
            one[row, start + (2 * _PLACE + half if deep else _PLACE)] = _element(register, half, kind)
    for number, register in enumerate(right):
        for half in range(2 if deep else 1):
            place = depth // 2 * number + (2 * _PLACE + half if deep else _PLACE)
            other[place, _GROUP] = _element(register, half, kind)
    product = one @ other
    found = []
    for number, register in enumerate(sums):
        before = register.astype(np.uint32).view(np.float32).astype(np.float64)
        added = before + product[_GROUP + 8 * (number // 2), 2 * _PLACE + number % 2]
        found.append(added.astype(np.float32).view(np.uint32).astype(np.uint64))
    return found


def factor_places(descriptor: int, rows: int, *, transposed: bool) -> NDArray[np.uint64]:
    """`wgmma`: the addresses in shared memory of a factor of halves, (rows, 16)."""
    start, leading, stride = (((descriptor >> bit) & 0x3FFF) << 4 for bit in (0, 16, 32))
    if descriptor >> 46 & 0xFFFF:
        raise PtxError(f"the descriptor {descriptor:#x} has a base offset, or bits that mean nothing")
    # Bytes of a line by the swizzling mode.
    line_bytes = (16, 128, 64, 32)[descriptor >> 62]
    row, depth = np.meshgrid(np.arange(rows), np.arange(16), indexing="ij")
    line, neighbor = (depth, row) if transposed else (row, depth)
    lines, slabs = stride, leading
    if transposed and line_bytes == 16:
        lines, slabs = leading, stride
    if not transposed and line_bytes > 16:
        slabs = 0  # 16 halves of depth lie in one line, whatever the leading distance
    along = line_bytes // 2
    apart = line // 8 * lines + line % 8 * line_bytes + neighbor // along * slabs + neighbor % along * 2
    address = np.asarray(start + apart, np.uint64)
    # Bits 4 to 6 of every address are combined with bits 7 to 9 by exclusive or, as many as the mode has.
    return np.asarray(address ^ (address >> np.uint64(3) & np.uint64(line_bytes - 16)), np.uint64)


def multiplied_by_group(kind: str, left: NDArray[np.uint16], right: NDArray[np.uint16], sums: list[Bits]) -> list[Bits]:
    """`wgmma`: the registers of 64 rows by the columns of the right factor, for the 128 lanes of a warpgroup."""
    one, other = (each.view(np.float16) if kind == "f16" else from_bfloat16(each) for each in (left, right))
    product = one.astype(np.float64) @ other.astype(np.float64).T
    lane = np.arange(128)
    row, column = lane // 32 * 16 + lane % 32 // 4, lane % 4 * 2
    found = []
    for number, register in enumerate(sums):
        before = register.astype(np.uint32).view(np.float32).astype(np.float64)
        added = before + product[row + number // 2 % 2 * 8, column + number // 4 * 8 + number % 2]
        found.append(added.astype(np.float32).view(np.uint32).astype(np.uint64))
    return found


def _element(register: Bits, half: int, kind: str) -> NDArray[np.float64]:
    """The numbers in one half of a register; of tf32 the lowest 13 bits do not count."""
    if kind == "tf32":
        bits = (register & np.uint64(0xFFFFE000)).astype(np.uint32)
        return np.asarray(bits.view(np.float32).astype(np.float64))
    bits = (register >> np.uint64(16 * half) & np.uint64(0xFFFF)).astype(np.uint16)
    values = bits.view(np.float16) if kind == "f16" else from_bfloat16(bits)
    return np.asarray(values.astype(np.float64))
