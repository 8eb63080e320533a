"""PTX interpreter: executes the kernels of a function on the CPU, instruction by instruction.

It runs the threads of some blocks at once. Each thread has its own program counter, and those furthest behind advance.
Asynchronous copies complete only when they are waited for.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retune.compiler.ir.kernel import DeviceFunction, Extents, Kernel
from tests.support.ptx.memory import LOCAL, SHARED, Buffer, Memory
from tests.support.ptx.program import Instruction, PtxError, PtxModule
from tests.support.ptx.values import TYPES, Bits, Mask, bits_of, compared, computed, converted, numbers, size_of
from tests.support.ptx.warp import factor_places, loaded_matrices, multiplied, multiplied_by_group, shuffled

MAX_LANES = 1 << 12
_WARP = 32
_TOGETHER = ("ldmatrix", "mma", "shfl", "wgmma")
_LITERAL = re.compile(r"0[fFdD](?P<bits>[0-9a-fA-F]+)$|(?P<whole>-?(0x[0-9a-fA-F]+|\d+))U?$")
_CARRY, _WORD = "%carry", np.uint64(0xFFFFFFFF)
_PLACE = re.compile(r"\[([^+\]]+)(?:\+(-?\d+))?\]$")


def run_ptx(text: str, function: DeviceFunction, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """The outputs that the PTX of a function computes. Raises: PtxError for what no GPU would answer for."""
    module, memory = PtxModule(text), Memory()
    given = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in inputs]
    others = (*function.params, *function.workspace)[len(given) :]
    addresses = [memory.add(values) for values in given]
    addresses += [memory.add(np.full(buffer.nbytes, 0xCD, np.uint8)) for buffer in others]
    constants = {name: memory.add(np.frombuffer(data, np.uint8)) for name, data in module.constants.items()}
    for kernel in function.kernels:
        together = max(1, MAX_LANES // kernel.threads)
        for first in range(0, prod(kernel.grid), together):
            count = min(together, prod(kernel.grid) - first)
            Blocks(module, memory, kernel, addresses, constants, first, count).run()
    outputs = function.params[len(given) :]
    lying = memory.buffers[len(given) :]
    return [
        buffer.data[0, : spec.nbytes].view(spec.dtype).reshape(spec.shape)
        for spec, buffer in zip(outputs, lying, strict=False)
    ]


@dataclass(slots=True)
class _Copies:
    """Asynchronous copies of some lanes in flight: `size` bytes each, of which `read` bytes are read and the rest are
    zeros.

    `groups` are the numbers of their commit groups, 0 before they have one.
    """

    lanes: NDArray[np.intp]
    targets: Bits
    sources: Bits
    read: Bits
    size: int
    groups: NDArray[np.int64]

    def where(self, mask: Mask) -> "_Copies":
        """Those of some of the lanes."""
        targets, sources, read = (each[mask] for each in (self.targets, self.sources, self.read))
        return _Copies(self.lanes[mask], targets, sources, read, self.size, self.groups[mask])


@dataclass(slots=True, eq=False)
class _Product:
    """A product of one warpgroup that is not done, and the number of its group, 0 before it has one."""

    instruction: Instruction
    here: Mask
    left: int
    right: int
    group: int = 0


class Blocks:
    """Some blocks of a launch, from number `first` on."""

    def __init__(
        self,
        module: PtxModule,
        memory: Memory,
        kernel: Kernel,
        addresses: Sequence[int],
        constants: Mapping[str, int],
        first: int,
        count: int,
    ) -> None:
        self.code = module.kernels[kernel.name]
        self.memory = memory
        self.arguments = dict(zip(self.code.params, addresses, strict=True))
        self.count = count * kernel.threads
        self.lanes = np.arange(self.count)
        self.block = self.lanes // kernel.threads
        thread = self.lanes % kernel.threads
        self.lane = thread % _WARP
        self.warp = self.block * 64 + thread // _WARP
        shared = Buffer(SHARED, module.shared_bytes + kernel.dynamic_shared, count)
        self.own = shared, Buffer(LOCAL, self.code.local_bytes, self.count)
        self.symbols = {**constants, **{name: SHARED + start for name, start in module.shared.items()}}
        self.registers: dict[str, NDArray[Any]] = {
            **_numbered("%ctaid", self.block + first, kernel.grid),
            **_numbered("%tid", thread, kernel.block),
        }
        self.place = np.zeros(self.count, np.int64)
        self.done, self.waits, self.late = (np.zeros(self.count, np.bool_) for _ in range(3))
        self.groups = np.zeros(self.count, np.int64)
        self.copies: list[_Copies] = []
        self.products: list[_Product] = []

    def run(self) -> None:
        """Execute the kernel from its start to its end."""
        while not self.done.all():
            going = ~(self.done | self.waits | self.late)
            if not going.any():
                raise PtxError("threads wait for others that never come")
            place = int(self.place[going].min())
            instruction = self.code.code[place]
            here = going & (self.place == place)
            if instruction.parts[0] in _TOGETHER:
                warps = 4 if instruction.parts[0] == "wgmma" else 1
                here = self._whole_warps(here | (self.late & (self.place == place)), warps)
            self.place[here] += 1
            self._execute(instruction, self._guarded(instruction, here))

    def _whole_warps(self, here: Mask, warps: int = 1) -> Mask:
        """The threads that are here with all others of their so many warps; the rest waits for these."""
        number = self.warp // warps
        whole = here & ~np.isin(number, number[~self.done & ~here])
        self.late |= here
        self.late &= ~whole
        return whole

    def _guarded(self, instruction: Instruction, here: Mask) -> Mask:
        if not instruction.guard:
            return here
        holds = self.registers[instruction.guard]
        return here & (~holds if instruction.negated else holds)

    def _execute(self, instruction: Instruction, here: Mask) -> None:
        if not here.any():
            return
        name = instruction.parts[0]
        carries = "cc" in instruction.parts or name in ("addc", "subc", "madc")
        known = Blocks.carry if carries else _DOES.get(name)
        with np.errstate(all="ignore"):
            if known is not None:
                known(self, instruction, here)
            else:
                given = [self.bits(name, here) for name in instruction.args[1:]]
                self.put(instruction.args[0], computed(instruction, given), here)

    def bits(self, name: str, here: Mask) -> Bits:
        """What an argument is for the threads that are here."""
        if name in self.registers:
            return np.asarray(self.registers[name][here])
        count = int(here.sum())
        if literal := _LITERAL.match(name):
            value = int(literal["bits"], 16) if literal["bits"] else int(literal["whole"], 0)
            return np.full(count, value & (1 << 64) - 1, np.uint64)
        base, _, more = name.partition("+")
        if base in self.symbols or base.startswith("__local_depot"):
            return np.full(count, self.symbols.get(base, LOCAL) + int(more or 0), np.uint64)
        raise PtxError(f"{name} has no value")

    def put(self, name: str, values: NDArray[Any], here: Mask) -> None:
        """Write a register of the threads that are here."""
        if name not in self.registers:
            self.registers[name] = np.zeros(self.count, values.dtype)
        self.registers[name][here] = values

    def address(self, text: str, here: Mask) -> Bits:
        """Where an argument in brackets points to."""
        found = _PLACE.match(text)
        if found is None:
            raise PtxError(f"unknown: {text}")
        return self.bits(found[1], here) + np.uint64(int(found[2] or 0) & (1 << 64) - 1)

    def read(self, addresses: Bits, size: int, lanes: NDArray[np.intp], text: str) -> NDArray[np.uint8]:
        """(threads, size) bytes that the lanes read."""
        return self.memory.read(addresses, size, self._copies_of(addresses, lanes), self.own, text)

    def write(self, addresses: Bits, values: NDArray[np.uint8], lanes: NDArray[np.intp], text: str) -> None:
        """Write (threads, size) bytes."""
        self.memory.write(addresses, values, self._copies_of(addresses, lanes), self.own, text)

    def _copies_of(self, addresses: Bits, lanes: NDArray[np.intp]) -> NDArray[np.intp]:
        return lanes if LOCAL <= int(addresses[0]) < 2 * LOCAL else self.block[lanes]

    def end(self, _: Instruction, here: Mask) -> None:
        """`ret`"""
        self.done |= here

    def branch(self, instruction: Instruction, here: Mask) -> None:
        """`bra`"""
        self.place[here] = self.code.labels[instruction.args[0]]

    def barrier(self, instruction: Instruction, here: Mask) -> None:
        """`bar.sync`: each that comes waits until all of the block wait at the same place."""
        self.waits |= here
        for block in np.unique(self.block[here]):
            mine = self.block == block
            if (self.done & mine).any():
                raise PtxError(f"some threads have ended before {instruction.text}")
            if (self.waits | ~mine).all():
                if np.unique(self.place[mine]).size > 1:
                    raise PtxError("threads of a block wait at different barriers")
                self.waits &= ~mine

    def load(self, instruction: Instruction, here: Mask) -> None:
        """`ld`"""
        names, place = _each(instruction.args[0]), instruction.args[1]
        if "param" in instruction.parts:
            self.put(names[0], np.full(int(here.sum()), self.arguments[place.strip("[]")], np.uint64), here)
            return
        size = size_of(instruction.kind)
        found = self.read(self.address(place, here), size * len(names), self.lanes[here], instruction.text)
        for number, name in enumerate(names):
            part = np.ascontiguousarray(found[:, number * size : (number + 1) * size]).view(TYPES[instruction.kind])
            # What has a sign fills up a wider register with it.
            wide = part[:, 0].astype(np.int64) if instruction.kind.startswith("s") else part[:, 0]
            self.put(name, bits_of(wide), here)

    def store(self, instruction: Instruction, here: Mask) -> None:
        """`st`"""
        parts = [numbers(self.bits(name, here), instruction.kind) for name in _each(instruction.args[1])]
        values = np.stack(parts, axis=1).view(np.uint8)
        self.write(self.address(instruction.args[0], here), values, self.lanes[here], instruction.text)

    def move(self, instruction: Instruction, here: Mask) -> None:
        """`mov` and `cvta`, also of the parts of a register."""
        target, source = instruction.args
        if target.startswith("{"):
            names, value = _each(target), self.bits(source, here)
            for number, name in enumerate(names):
                width = 8 * size_of(instruction.kind) // len(names)
                self.put(name, value >> np.uint64(number * width) & np.uint64((1 << width) - 1), here)
            return
        if source.startswith("{"):
            width = 8 * size_of(instruction.kind) // len(_each(source))
            mask = np.uint64((1 << width) - 1)
            parts = [(self.bits(name, here) & mask) << np.uint64(n * width) for n, name in enumerate(_each(source))]
            self.put(target, np.bitwise_or.reduce(parts), here)
            return
        if instruction.kind == "pred":
            self.put(target, self.truth(source, here), here)
        else:
            self.put(target, self.bits(source, here), here)

    def truth(self, name: str, here: Mask) -> Mask:
        """A predicate of the threads that are here."""
        return np.asarray(self.registers[name][here] if name in self.registers else np.full(here.sum(), int(name) != 0))

    def logic(self, instruction: Instruction, here: Mask) -> None:
        """`and`, `or`, `xor` and `not`, also of predicates."""
        if instruction.kind != "pred":
            given = [self.bits(name, here) for name in instruction.args[1:]]
            self.put(instruction.args[0], computed(instruction, given), here)
            return
        values = [self.truth(name, here) for name in instruction.args[1:]]
        joined = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not}
        self.put(instruction.args[0], joined[instruction.parts[0]](*values), here)

    def carry(self, instruction: Instruction, here: Mask) -> None:
        """`add`, `sub` and `mad` of words that read the carry, or write it."""
        if instruction.kind != "u32":
            raise PtxError(f"unknown: {instruction.text}")
        name, (one, other, *more) = instruction.parts[0], (self.bits(arg, here) & _WORD for arg in instruction.args[1:])
        if more:
            product = one * other
            one, other = product >> np.uint64(32) if "hi" in instruction.parts else product & _WORD, more[0]
        if name.endswith("c"):
            other = other + self.bits(_CARRY, here)
        total = one - other if name.startswith("sub") else one + other
        self.put(instruction.args[0], total & _WORD, here)
        if "cc" in instruction.parts:
            self.put(_CARRY, total >> np.uint64(32) & np.uint64(1), here)

    def compare(self, instruction: Instruction, here: Mask) -> None:
        """`setp`, of two halves with two results"""
        targets, kind = instruction.args[0].split("|"), instruction.kind.removesuffix("x2")
        given = [self.bits(name, here) for name in instruction.args[1:]]
        for number, target in enumerate(targets):
            one, other = (numbers(bits >> np.uint64(16 * number), kind) for bits in given)
            self.put(target, compared(instruction.parts[1], one, other), here)

    def select(self, instruction: Instruction, here: Mask) -> None:
        """`selp`"""
        target, then, otherwise, condition = instruction.args
        chosen = np.where(self.truth(condition, here), self.bits(then, here), self.bits(otherwise, here))
        self.put(target, chosen, here)

    def convert(self, instruction: Instruction, here: Mask) -> None:
        """`cvt`"""
        given = [self.bits(name, here) for name in instruction.args[1:]]
        self.put(instruction.args[0], converted(instruction, given), here)

    def shuffle(self, instruction: Instruction, here: Mask) -> None:
        """`shfl.sync`"""
        target, source, *rest = instruction.args
        step, clamp, members = (int(self.bits(name, here)[0]) & 0xFFFFFFFF for name in rest)
        for warp in self._warps(here):
            size = int(warp.sum())
            members = members & (1 << size) - 1 if members == 0xFFFFFFFF and size < _WARP else members
            given = self.bits(source, warp)
            self.put(target, shuffled(instruction.parts[2], given, step, clamp, members, instruction.text), warp)

    def matrices(self, instruction: Instruction, here: Mask) -> None:
        """`ldmatrix`: the first lanes say where the rows are, eight for each matrix."""
        names = _each(instruction.args[0])
        for warp in self._warps(here):
            lanes = self.lanes[warp][: 8 * len(names)]
            places = self.address(instruction.args[1], warp)[: 8 * len(names)]
            rows = self.read(places, 16, lanes, instruction.text).view(np.uint16)
            found = loaded_matrices(rows, len(names), transposed="trans" in instruction.parts)
            for name, value in zip(names, found, strict=True):
                self.put(name, value, warp)

    def multiply(self, instruction: Instruction, here: Mask) -> None:
        """`mma.sync`"""
        for warp in self._warps(here):
            target, *factors = (_each(argument) for argument in instruction.args)
            left, right, sums = ([self.bits(name, warp) for name in names] for names in factors)
            made = multiplied(instruction.parts[3], instruction.parts[-2], left, right, sums)
            for name, value in zip(target, made, strict=True):
                self.put(name, value, warp)

    def group(self, instruction: Instruction, here: Mask) -> None:
        """`wgmma`: products are done when they are waited for, in their order."""
        for number in np.unique(self.warp[here] // 4):
            mine = here & (self.warp // 4 == number)
            if mine.sum() != 4 * _WARP:
                raise PtxError(f"no whole warpgroup: {instruction.text}")
            own = [each for each in self.products if (each.here == mine).all()]
            if "mma_async" in instruction.parts:
                left, right = (np.unique(self.bits(name, mine)) for name in instruction.args[1:3])
                if left.size > 1 or right.size > 1 or not self.truth(instruction.args[3], mine).all():
                    raise PtxError(f"threads of a warpgroup differ: {instruction.text}")
                self.products.append(_Product(instruction, mine, int(left[0]), int(right[0])))
            elif "commit_group" in instruction.parts:
                last = max((each.group for each in own), default=0)
                for each in own:
                    each.group = each.group or last + 1
            elif "wait_group" in instruction.parts:
                last = max((each.group for each in own), default=0) - int(instruction.args[0])
                for each in own:
                    if 0 < each.group <= last:
                        self._multiply_group(each)
                        self.products.remove(each)
            elif "fence" not in instruction.parts:
                raise PtxError(f"unknown: {instruction.text}")

    def _multiply_group(self, product: _Product) -> None:
        instruction, mine = product.instruction, product.here
        shape, kind = instruction.parts[4], instruction.parts[-1]
        columns = int(shape.removeprefix("m64n").removesuffix("k16"))
        factors = []
        for rows, descriptor, turned in ((64, product.left, 6), (columns, product.right, 7)):
            places = np.uint64(SHARED) + factor_places(descriptor, rows, transposed=instruction.args[turned] == "1")
            lanes = np.full(places.size, self.lanes[mine][0])
            found = self.read(places.reshape(-1), 2, lanes, instruction.text)
            factors.append(np.ascontiguousarray(found).view(np.uint16).reshape(places.shape))
        names = _each(instruction.args[0])
        sums = [self.bits(name, mine) for name in names]
        for name, value in zip(names, multiplied_by_group(kind, factors[0], factors[1], sums), strict=True):
            self.put(name, value, mine)

    def nothing(self, instruction: Instruction, here: Mask) -> None:
        """`fence.proxy.async`"""

    def _warps(self, here: Mask) -> list[Mask]:
        return [here & (self.warp == warp) for warp in np.unique(self.warp[here])]

    def copy(self, instruction: Instruction, here: Mask) -> None:
        """`cp.async` and what waits for it."""
        if "commit_group" in instruction.parts:
            self.groups[here] += 1
            for copies in self.copies:
                new = here[copies.lanes] & (copies.groups == 0)
                copies.groups[new] = self.groups[copies.lanes[new]]
            return
        if "wait_group" in instruction.parts:
            self._arrive(np.where(here, self.groups - int(instruction.args[0]), 0), instruction.text)
            return
        size, lanes = int(instruction.args[2]), self.lanes[here]
        targets, sources = (self.address(text, here) for text in instruction.args[:2])
        read = self.bits(instruction.args[-1], here) & np.uint64(0xFFFFFFFF)
        if (sources % np.uint64(size)).any():
            raise PtxError(f"not aligned: {instruction.text}")
        # Until they arrive what lies there is nothing that anybody may read.
        self.write(targets, np.full((lanes.size, size), 0xEE, np.uint8), lanes, instruction.text)
        self.copies.append(_Copies(lanes, targets, sources, read, size, np.zeros(lanes.size, np.int64)))

    def _arrive(self, last: NDArray[np.int64], text: str) -> None:
        """The copies of every lane up to its group number `last` are done."""
        under_way = []
        for copies in self.copies:
            ready = (copies.groups > 0) & (copies.groups <= last[copies.lanes])
            if ready.any():
                self._finish(copies.where(ready), text)
            if not ready.all():
                under_way.append(copies.where(~ready))
        self.copies = under_way

    def _finish(self, copies: _Copies, text: str) -> None:
        values, wanted = np.zeros((copies.lanes.size, copies.size), np.uint8), copies.read > 0
        if wanted.any():
            values[wanted] = self.read(copies.sources[wanted], copies.size, copies.lanes[wanted], text)
        values[np.arange(copies.size) >= copies.read[:, None]] = 0
        self.write(copies.targets, values, copies.lanes, text)


def _numbered(name: str, numbers_: NDArray[np.intp], extents: Extents) -> dict[str, Bits]:
    """The special registers of threads or blocks."""
    found, rest = {}, numbers_
    for letter, extent in zip("xyz", extents, strict=True):
        found[f"{name}.{letter}"] = (rest % extent).astype(np.uint64)
        rest = rest // extent
    return found


def _each(text: str) -> list[str]:
    """The names in braces, or the one without."""
    return [name.strip() for name in text.strip("{}").split(",")]


_DOES: Mapping[str, Callable[[Blocks, Instruction, Mask], None]] = {
    "ret": Blocks.end,
    "bra": Blocks.branch,
    "bar": Blocks.barrier,
    "ld": Blocks.load,
    "st": Blocks.store,
    "mov": Blocks.move,
    "cvta": Blocks.move,
    "and": Blocks.logic,
    "or": Blocks.logic,
    "xor": Blocks.logic,
    "not": Blocks.logic,
    "setp": Blocks.compare,
    "selp": Blocks.select,
    "cvt": Blocks.convert,
    "shfl": Blocks.shuffle,
    "ldmatrix": Blocks.matrices,
    "mma": Blocks.multiply,
    "wgmma": Blocks.group,
    "fence": Blocks.nothing,
    "cp": Blocks.copy,
}
