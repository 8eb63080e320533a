"""Writes the function that runs the steps of a scan: its statements are functions of the step, called in order.

A team of threads enters the loop once. Each thread runs its share of a parallel statement, the first runs the others,
and all wait at a barrier before a statement that accesses what an earlier statement writes. If no parallel statement is
worth threads, a single thread runs the steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from retune.compiler.codegen.team import share_of
from retune.compiler.codegen.work import BARRIER_CYCLES, cycles_of
from retune.compiler.ir.dims import Dim
from retune.compiler.ir.expr import Buffer
from retune.compiler.ir.rewrite import accesses_in, statements_of
from retune.compiler.ir.stmt import For, LoopKind, Stmt

BARRIER = "GOMP_barrier"
"""The function of the OpenMP runtime by which a team of threads waits for all of its threads."""


@dataclass(frozen=True, slots=True)
class ScanPart:
    """A statement of a step; the threads divide its `extent` iterations, or the first runs it if that is 0."""

    statement: Stmt
    extent: int

    def waits_for(self, earlier: "ScanPart") -> bool:
        """Whether threads must not begin it before all have finished an earlier part."""
        if not self.extent and not earlier.extent:
            return False  # the same thread runs both
        written, accessed = _buffers(self.statement)
        earlier_written, earlier_accessed = _buffers(earlier.statement)
        return bool(written & earlier_accessed or accessed & earlier_written)


def _buffers(statement: Stmt) -> tuple[set[Buffer], set[Buffer]]:
    """The buffers that a statement writes, and all that it accesses."""
    accesses = list(accesses_in(statement))
    return {buffer for buffer, _, written in accesses if written}, {buffer for buffer, _, _ in accesses}


def parts_of(loop: For, vector_bytes: int) -> list[ScanPart]:
    """The statements of the steps; loops that gain less than the barriers cost are serial."""
    parts = []
    for statement in statements_of(loop.body):
        extent = 0
        if isinstance(statement, For) and statement.kind is LoopKind.PARALLEL:
            # Two threads save half of the cycles; there is a barrier before the loop and after it. On AVX-512 two
            # threads gain nothing for 15,000 cycles (LSTM, 2 x 100), and wait for milliseconds on a busy machine.
            worth = cycles_of(statement, vector_bytes) >= 16 * BARRIER_CYCLES
            extent = statement.extent if worth else 0
            statement = statement if worth else replace(statement, kind=LoopKind.SERIAL)
        parts.append(ScanPart(statement, extent))
    return parts


def barriers(parts: Sequence[ScanPart]) -> set[int]:
    """The parts before which all threads wait for each other; they do so at the end of each step, too."""
    waits, since = set[int](), 0
    for number, part in enumerate(parts):
        if any(part.waits_for(earlier) for earlier in parts[since:number]):
            waits.add(number)
            since = number
    return waits


def scan_function(name: str, parts: Sequence[ScanPart], steps: int, params: str, arguments: str, sizes: str) -> str:
    """The function `name` of the buffers, the number of the thread, that of all threads, and the sizes; it calls
    `name.PART`, and `name.steps` for a symbolic number of steps.
    """
    shared = [number for number, part in enumerate(parts) if part.extent]
    lines = [
        f"define internal void @{name}({params}, i64 %me, i64 %all{sizes}) #0 {{",
        "entry:",
        "  %leads = icmp eq i64 %me, 0",
        "  %alone = icmp eq i64 %all, 1",
    ]
    for number in shared:
        lines += share_of(str(parts[number].extent), str(number))
    count, enter = str(steps), ["  br label %step0"]
    if isinstance(steps, Dim):
        count = "%steps"
        enter = [
            f"  %steps = call i64 @{name}.steps({sizes.removeprefix(', ')})",
            "  %runs = icmp sgt i64 %steps, 0",
            "  br i1 %runs, label %step0, label %done",
        ]
    lines += [*enter, "step0:", "  %step = phi i64 [ 0, %entry ], [ %next, %last ]"]
    waits = barriers(parts) if shared else set()
    for number, part in enumerate(parts):
        lines += _barrier(str(number)) if number in waits else []
        condition, low, high = f"%some{number}", f"%low{number}", f"%high{number}"
        if not part.extent:
            condition, low, high = "%leads", "0", "1"
        lines += [
            f"  br i1 {condition}, label %run{number}, label %ran{number}",
            f"run{number}:",
            f"  call void @{name}.{number}({arguments}, i64 {low}, i64 {high}, i64 %step{sizes})",
            f"  br label %ran{number}",
            f"ran{number}:",
        ]
    return "\n".join(
        [
            *lines,
            *(_barrier("s") if shared else []),
            "  br label %last",
            "last:",
            "  %next = add nuw nsw i64 %step, 1",
            f"  %more = icmp ult i64 %next, {count}",
            "  br i1 %more, label %step0, label %done",
            "done:",
            "  ret void",
            "}",
        ]
    )


def _barrier(label: str) -> list[str]:
    return [
        f"  br i1 %alone, label %go{label}, label %wait{label}",
        f"wait{label}:",
        f"  call void @{BARRIER}()",
        f"  br label %go{label}",
        f"go{label}:",
    ]
