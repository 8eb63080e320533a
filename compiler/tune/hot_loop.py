"""Finds the hot loop of a kernel in its assembly and counts its instructions.

Reads the listings that LLVM prints for x86 (AT&T syntax) and AArch64, and PTX. A loop is what lies between a label and
a branch back to it. The hot loop is the innermost loop with the most arithmetic: of a tiled kernel its register tile.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

X86, AARCH64, PTX = "x86", "aarch64", "ptx"

_LABEL = re.compile(r"^([\w.$]+):")
# With PTX's guards, such as @%p1.
_INSTRUCTION = re.compile(r"^\s+(?:@!?%\w+\s+)?([a-z][\w.]*)\s*(.*)$")

_ARITHMETIC = {
    X86: re.compile(r"v?p?(add|sub|mul|div|sqrt|max|min|rcp14|rsqrt14|rndscale|round)(ps|pd|ss|sd|sh|ph)$"),
    AARCH64: re.compile(r"f(add|sub|mul|div|sqrt|max|min|maxnm|minnm|neg|abs)$"),
    PTX: re.compile(r"(add|sub|mul|div|max|min|sqrt|ex2|lg2|rcp|rsqrt)[\w.]*\.(f16|bf16|f32|f64)"),
}
_MULTIPLY_ADD = {
    X86: re.compile(r"vf[n]?m(add|sub)|vdpbf16ps|vpdp(bus|wss|bss|buu)"),
    AARCH64: re.compile(r"f(mla|mls|madd|msub)|bf(dot|mmla)|[su]s?(dot|mmla)"),
    PTX: re.compile(r"fma\.|mad\.\w+\.f|mma\.sync|wgmma|dp4a"),
}


@dataclass(frozen=True, slots=True)
class HotLoop:
    """A loop of a listing: its lines are `first` to `last`, counted from 0, and what one iteration executes. All counts
    are of instructions; `spills` are loads and stores of the stack, or of a GPU's local memory, and count in `loads`
    and `stores` too. `registers` is how many vector registers it names, 0 where they are virtual (PTX);
    `accumulators` into how many registers its multiply-adds sum.
    """

    first: int
    last: int
    is_loop: bool
    instructions: int
    multiply_adds: int
    arithmetic: int
    loads: int
    stores: int
    spills: int
    registers: int
    accumulators: int

    def __str__(self) -> str:
        """One iteration in a sentence."""
        what = "one iteration of the hot loop" if self.is_loop else "the kernel has no loop; its code"
        registers = f", in {self.registers} vector registers" if self.registers else ""
        return (
            f"{what} executes {self.multiply_adds} multiply-adds, {self.arithmetic} other arithmetic instructions, "
            f"{self.loads} loads, {self.stores} stores and {self.spills} spills, of {self.instructions} "
            f"instructions{registers}"
        )


@dataclass(frozen=True, slots=True)
class _Instruction:
    line: int
    mnemonic: str
    operands: str


def find_hot_loop(listing: str, dialect: str) -> HotLoop | None:
    """The hot loop of a listing in a `dialect`: `X86`, `AARCH64` or `PTX`; all of its code where it has no loop, None
    where it has no instructions.
    """
    lines = listing.splitlines()
    code = list(_instructions(lines))
    if not code:
        return None
    loops = _innermost(lines, code)
    candidates = [_count(code, dialect, *span, is_loop=True) for span in loops]
    if not candidates:
        return _count(code, dialect, code[0].line, code[-1].line, is_loop=False)
    # The register tile is unrolled, so the loop with the most multiply-adds in its text runs most of them.
    return max(candidates, key=lambda loop: (loop.multiply_adds, loop.arithmetic, loop.loads + loop.stores))


def mark(listing: str, loop: HotLoop, around: int | None = None) -> str:
    """The listing with a bar before the lines of the loop; only the loop and so many lines `around` it if given."""
    lines = listing.splitlines()
    first, last = (0, len(lines)) if around is None else (loop.first - around, loop.last + around + 1)
    marked = (
        f"{'|' if loop.is_loop and loop.first <= number <= loop.last else ' '} {line.expandtabs(8)}"
        for number, line in enumerate(lines)
        if first <= number < last
    )
    return "\n".join(marked)


def _instructions(lines: list[str]) -> Iterator[_Instruction]:
    for number, line in enumerate(lines):
        match = _INSTRUCTION.match(line)
        if match and not line.lstrip().startswith((".", "//", "#")):
            yield _Instruction(number, match[1], match[2])


def _innermost(lines: list[str], code: list[_Instruction]) -> list[tuple[int, int]]:
    """First and last line of every loop that holds no other."""
    labels = {match[1]: number for number, line in enumerate(lines) if (match := _LABEL.match(line))}
    spans: dict[int, int] = {}
    for instruction in code:
        # Jumps of x86; b, cbz and tbz of AArch64; bra of PTX.
        if not instruction.mnemonic.startswith(("j", "b", "cb", "tb")):
            continue
        target = re.split(r"[\s,;]+", instruction.operands.strip().rstrip(";"))[-1]
        start = labels.get(target)
        if start is not None and start <= instruction.line:
            # Several branches back to one label are one loop, which ends at the last of them.
            spans[start] = max(instruction.line, spans.get(start, 0))
    return [
        (first, last)
        for first, last in spans.items()
        if not any(first <= other and end <= last and (other, end) != (first, last) for other, end in spans.items())
    ]


def _count(code: list[_Instruction], dialect: str, first: int, last: int, *, is_loop: bool) -> HotLoop:
    body = [instruction for instruction in code if first <= instruction.line <= last]
    accesses = [_access(instruction, dialect) for instruction in body]
    fused = [bool(_MULTIPLY_ADD[dialect].match(instruction.mnemonic)) for instruction in body]
    others = [bool(_ARITHMETIC[dialect].match(instruction.mnemonic)) for instruction in body]
    return HotLoop(
        first,
        last,
        is_loop,
        len(body),
        sum(fused),
        sum(other and not is_fused for other, is_fused in zip(others, fused, strict=True)),
        sum(load for load, _, _ in accesses),
        sum(store for _, store, _ in accesses),
        sum(spill for _, _, spill in accesses),
        len(_vector_registers(body, dialect)),
        len({_target(instruction, dialect) for instruction, is_fused in zip(body, fused, strict=True) if is_fused}),
    )


def _access(instruction: _Instruction, dialect: str) -> tuple[bool, bool, bool]:
    """Whether an instruction loads, stores, and does so in the stack."""
    if dialect == PTX:
        load, store = instruction.mnemonic.startswith(("ld", "cp.async")), instruction.mnemonic.startswith("st")
        return load, store, ".local" in instruction.mnemonic
    if dialect == AARCH64:
        load, store = instruction.mnemonic.startswith("ld"), instruction.mnemonic.startswith("st")
        return load, store, (load or store) and "[sp" in instruction.operands
    if "(" not in instruction.operands or instruction.mnemonic.startswith(("lea", "nop", "prefetch", "j")):
        return False, False, False
    operands = instruction.operands.partition("#")[0].strip()
    # of the operands in AT&T syntax the last is written, unless the instruction only compares; {%k1} is a mask
    store = operands.rstrip("}").partition(" {")[0].endswith(")") and not instruction.mnemonic.startswith(
        ("cmp", "test", "vucom")
    )
    store = store and instruction.operands.count(",") > 0
    load = not store or instruction.mnemonic.startswith(("add", "sub", "inc", "dec", "or", "and", "xor"))
    # With an index register `%rbp` is a general register that holds an array, not the frame.
    return load, store, "(%rsp" in operands or "(%rbp)" in operands


def _target(instruction: _Instruction, dialect: str) -> str:
    """The operand that an instruction of a register writes: the last in AT&T syntax, else the first."""
    operands = instruction.operands.partition("#")[0].rstrip("; ").split(",")
    return operands[-1 if dialect == X86 else 0].partition("{%k")[0].strip()


def _vector_registers(body: list[_Instruction], dialect: str) -> set[str]:
    if dialect == PTX:
        return set()
    # xmm, ymm and zmm of one number are parts of one register.
    pattern = r"%[xyz]mm(\d+)" if dialect == X86 else r"\b[qv](\d+)\b"
    return {number for instruction in body for number in re.findall(pattern, instruction.operands)}
