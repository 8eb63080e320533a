"""Upper bounds on the speed of GPU kernels, from the instruction mix of their machine code.

A bound follows from the code and from what a multiprocessor issues per cycle. Nothing is measured; memory latency and
bank conflicts of shared memory are ignored.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from benchmarks.nvdisasm import CodeLoop, Instruction, KernelCode
from retune.compiler.core.gpu_facts import GpuFacts
from retune.compiler.ir.expr import Binary, BinaryOp
from retune.compiler.ir.kernel import Kernel
from retune.compiler.ir.stmt import For, LoopKind, Stmt, Store, inner_stmts
from retune.compiler.ir.tensor_core import WARP, Mma, WarpgroupMma

_PARTS = 4
"""Schedulers of a multiprocessor, each of which starts an instruction of a warp in a cycle."""

_SHARED_BYTES = 128
"""What shared memory moves in a cycle."""

_HALF_BYTES = 2

_CACHE_RATIO = 2.5
"""How much more a cycle the shared cache gives than memory."""

_SPECIAL, _INTEGER = 4, 16
"""Lanes of each part that do functions such as powers, and integers."""

_MULTIPLY_ADDS = {"1684": 512, "1688": 1024, "16816": 2048}
"""Multiply-adds of an HMMA by its shape: rows, columns, depth."""

_GROUP_SHAPE = re.compile(r"\.(?P<rows>\d+)x(?P<columns>\d+)x(?P<depth>\d+)\.")
"""Of what four warps multiply with an HGMMA."""
_MULTIPLIES = ("FFMA", "HMMA", "HGMMA")

_WIDE = {"LDS": "lds", "STS": "sts", "LDG": "ldg", "STG": "stg", "LDGSTS": "ldgsts", "LDSM": "ldsm"}
_FLOATS = ("FFMA", "FADD", "FMUL", "FMNMX", "FSETP", "FSEL", "HFMA2", "HADD2", "HMUL2", "FSWZADD", "F2FP")
_LOCAL = ("LDL", "STL")
_FLOW = ("BRA", "BSSY", "BSYNC", "EXIT", "WARPSYNC", "CALL", "RET")
_WAITING = ("DEPBAR", "LDGDEPBAR", "ARRIVES", "MEMBAR", "ERRBAR")
_INDICES = (
    *("IADD3", "VIADD", "IMAD", "LEA", "LOP3", "PLOP3", "SHF", "ISETP", "MOV", "SEL", "IMNMX", "VIMNMX", "PRMT"),
    *("UIADD3", "UIMAD", "ULEA", "ULOP3", "USHF", "UISETP", "UMOV", "USEL", "ULDC", "LDC", "R2UR", "R2P", "P2R"),
    *("UPLOP3", "S2UR", "S2R", "CS2R", "IABS", "BMSK", "SGXT", "I2F", "F2I", "UPRMT", "UFLO", "FLO", "POPC"),
)


def kind_of(one: Instruction) -> str:
    """What an instruction is counted as: its name in small letters, of what moves memory with its bits; "index" for
    integers and moves, "float" for what the float32 pipe does but ffma.
    """
    if one.base in _WIDE:
        return f"{_WIDE[one.base]}{one.bits}"
    if one.base in _LOCAL:
        return "spill"
    if one.name.startswith("HFMA2.MMA") or one.base in _INDICES:
        return "index"
    if one.base in (*_MULTIPLIES, "BAR", "MUFU", "SHFL"):
        return one.base.lower()
    if one.base in _FLOATS:
        return "float"
    if one.base in _FLOW or one.base in _WAITING:
        return "flow"
    return "other"


def mix(instructions: Iterable[Instruction]) -> dict[str, int]:
    """How many there are of each kind, the most frequent first."""
    return dict(Counter(map(kind_of, instructions)).most_common())


@dataclass(frozen=True, slots=True)
class Cycles:
    """Minimum cycles that a multiprocessor needs for one warp in each of its partitions.

    `issue` is for starting the instructions, `math` for the kernel's arithmetic (FFMA or tensor cores); the others are
    for the float32 pipe, special functions, shared memory and the cache.
    """

    issue: float
    math: float
    floats: float
    special: float
    shared: float
    cache: float

    @property
    def least(self) -> float:
        """No fewer than the longest of them."""
        return max(self.issue, self.math, self.floats, self.special, self.shared, self.cache)

    @property
    def share(self) -> float:
        """The share of the peak of arithmetic that is left at most."""
        return self.math / self.least if self.least else 0.0

    def limits(self) -> dict[str, float]:
        """What each of them alone would leave of the peak, at most 1."""
        each = {"issue": self.issue, "floats": self.floats, "special": self.special, "shared": self.shared}
        each["cache"] = self.cache
        return {name: round(min(1.0, self.math / cycles), 3) for name, cycles in each.items() if cycles and self.math}


def cycles_of(counted: Mapping[Instruction, float], facts: GpuFacts) -> Cycles:
    """The cycles of so many of each of the instructions."""

    def total(*bases: str) -> float:
        return sum(count for one, count in counted.items() if one.base in bases)

    lanes = facts.lanes / _PARTS
    tensor = sum(count * _tensor_cycles(one, facts) for one, count in counted.items())
    shared = sum(count * _shared_cycles(one) for one, count in counted.items()) * _PARTS
    bandwidth = _CACHE_RATIO * facts.bandwidth / facts.clock / facts.multiprocessors
    moved = sum(count * one.bits / 8 for one, count in counted.items() if one.base in ("LDG", "STG", "LDGSTS"))
    ffma = total("FFMA")
    return Cycles(
        issue=sum(counted.values()),
        math=tensor or ffma * WARP / lanes,
        floats=total("FFMA", *_FLOATS) * WARP / lanes,
        special=total("MUFU") * WARP / _SPECIAL,
        shared=shared,
        cache=moved * WARP * _PARTS / bandwidth,
    )


def _tensor_cycles(one: Instruction, facts: GpuFacts) -> float:
    if one.base == "HGMMA":
        rows, columns, depth = _group_shape(one)
        return rows * columns * depth / max(1.0, float(facts.group_tensor))
    return _multiply_adds(one) / max(1.0, facts.tensor / _PARTS)


def _group_shape(one: Instruction) -> tuple[int, int, int]:
    found = _GROUP_SHAPE.search(one.name)
    return (int(found["rows"]), int(found["columns"]), int(found["depth"])) if found else (0, 0, 0)


def _multiply_adds(one: Instruction) -> float:
    if one.base != "HMMA":
        return 0.0
    done = next((_MULTIPLY_ADDS[part] for part in one.name.split(".") if part in _MULTIPLY_ADDS), 0)
    return done * (2.0 if "TF32" in one.name else 1.0)  # of tf32 half as many as of halves in a cycle


def _shared_cycles(one: Instruction) -> float:
    """Cycles of shared memory for one warp: a load at least one, since threads may read the same; of what is written
    each thread has its own.
    """
    match one.base:
        case "LDS":
            return 1.0
        case "STS" | "LDGSTS" | "LDSM":
            return max(1.0, one.bits / 8 * WARP / _SHARED_BYTES)
        case "HGMMA":
            rows, columns, depth = _group_shape(one)
            return (rows + columns) * depth * _HALF_BYTES / _PARTS / _SHARED_BYTES
    return 0.0


@dataclass(frozen=True, slots=True)
class CodeBound:
    """Bounds derived from a kernel's machine code: the hottest loop's `mix` and cycles per iteration, and the
    cycles of a whole thread (`whole`), where the trip counts are known.
    """

    mix: dict[str, int]
    iteration: Cycles
    whole: Cycles | None
    around: dict[str, int]


def bound_of(code: KernelCode, kernel: Kernel, facts: GpuFacts) -> CodeBound:
    """What one kernel's machine code says of it."""
    loop = hottest(code)
    if loop is None:
        once = cycles_of(Counter(code.instructions), facts)
        return CodeBound(mix(code.instructions), once, once, {})
    inner = tuple(code.instructions[loop.first : loop.last + 1])
    outer = code.around(loop)
    around = mix(code.own(outer[-1])) if outer else {}
    iterations = _iterations(code, kernel, loop)
    whole = None
    if iterations is not None:
        counted: dict[Instruction, float] = {}
        for number, one in enumerate(code.instructions):
            times = prod(times for each, times in iterations.items() if number in each)
            counted[one] = counted.get(one, 0.0) + times
        whole = cycles_of(counted, facts)
    return CodeBound(mix(inner), cycles_of(Counter(inner), facts), whole, around)


def hottest(code: KernelCode) -> CodeLoop | None:
    """The innermost loop that does most arithmetic, or else has most instructions."""

    def work(loop: CodeLoop) -> tuple[int, int]:
        inside = code.instructions[loop.first : loop.last + 1]
        return sum(one.base in _MULTIPLIES for one in inside), len(inside)

    return max(code.innermost(), key=work, default=None)


def _iterations(code: KernelCode, kernel: Kernel, loop: CodeLoop) -> dict[CodeLoop, float] | None:
    """How often the loop and those around it iterate, each for one iteration of the one around it; None where that
    cannot be told. The outer ones iterate as often as those of the kernel, the loop itself as often as it takes for its
    arithmetic.
    """
    runs, chain = max(_sums(kernel.body.body, 1, ()), default=(0, ()))
    outer = code.around(loop)
    inside = code.instructions[loop.first : loop.last + 1]
    done = sum(one.base in _MULTIPLIES for one in inside)
    if not runs or not done or len(outer) > len(chain):
        return None
    iterations = dict(zip(outer, map(float, chain), strict=False))
    iterations[loop] = runs / done / prod(iterations.values())
    return iterations


def _sums(stmt: Stmt, times: int, chain: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Of every statement that adds to a sum: how often a thread does it, and the loops at run time around it."""
    adds = isinstance(stmt, Store) and isinstance(stmt.value, Binary) and stmt.value.op is BinaryOp.ADD
    if isinstance(stmt, Mma) or adds:
        yield times, chain
    if isinstance(stmt, WarpgroupMma):
        yield times * stmt.shape.rows * stmt.shape.steps, chain
    if isinstance(stmt, For):
        written_out = stmt.kind in (LoopKind.UNROLL, LoopKind.VECTOR)
        times, chain = times * stmt.extent, chain if written_out else (*chain, stmt.extent)
    for inner in inner_stmts(stmt):
        yield from _sums(inner, times, chain)
