"""Writes the LLVM module of one kernel: one function per top-level statement, called by the kernel's entry.

    int32_t NAME(void** buffers, int32_t num_threads, int64_t size, …)

The sizes are the values of the kernel's symbols, none for most kernels. Parallel statements run through the OpenMP
runtime, unless a single thread would finish before others begin. The buffers of a kernel must not overlap: the
generated functions declare them noalias.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from retune.compiler.codegen.body import BodyEmitter
from retune.compiler.codegen.cpu import function_attributes
from retune.compiler.codegen.intrinsics import DECLARATIONS
from retune.compiler.codegen.scan_loop import BARRIER, parts_of, scan_function
from retune.compiler.codegen.subtarget import Subtarget
from retune.compiler.codegen.team import (
    extent_function,
    fork,
    limit_part,
    share_of,
    sizes_of,
    symbolic_part,
    team_function,
)
from retune.compiler.codegen.values import Scalar, Storage
from retune.compiler.codegen.work import cycles_of, is_worth_threads
from retune.compiler.codegen.writer import FunctionWriter
from retune.compiler.core.dtype import item_bytes
from retune.compiler.core.errors import LoweringError
from retune.compiler.ir.dims import Dim
from retune.compiler.ir.expr import Buffer, Var
from retune.compiler.ir.stmt import Block, For, Invoke, LoopFunction, LoopKind, Stmt
from retune.compiler.runtime.artifact import ExternBuffer, ExternCall

# A cache line, and AVX-512's register: whole vectors of an aligned buffer never straddle two lines.
ALIGNMENT = 64
_MOST_CYCLES = 1 << 53
_NEAREST_CACHE = 1 << 15
"""Bytes of the first-level cache of most CPUs: a smaller constant comes from far only once a call."""


@dataclass(frozen=True, slots=True)
class KernelText:
    """LLVM text of a kernel, the size of its workspace, its calls of functions, and its work (`KernelArtifact`)."""

    llvm: str
    workspace_bytes: int
    calls: tuple[ExternCall, ...] = ()
    work: tuple[int, int] = (0, 0)


def write_kernel(function: LoopFunction, subtarget: Subtarget, stack_bytes: int) -> KernelText:
    """The module of one kernel; `stack_bytes` is the stack of a thread.

    Raises: LoweringError when local buffers exceed it.
    """
    body = function.body
    statements = body.statements if isinstance(body, Block) else (body,)
    buffers = (*function.params, *function.workspace)
    parts = []
    calls = []
    called: list[ExternCall] = []
    work = [0.0, 0.0]
    numbers = count()
    sizes = {Var(name): Scalar(f"%size{number}", 0, is_size=True) for number, name in enumerate(function.symbols)}
    for index, limit in enumerate(function.limits):
        text, call = limit_part(function.name, index, limit, BodyEmitter(FunctionWriter(), subtarget, {}, sizes))
        parts.append(text)
        calls.append(call)
    for index, statement in enumerate(statements):
        # A registered function is called from the entry, between statements: it must not run inside a parallel region.
        if isinstance(statement, Invoke):
            called.append(_call_of(f"{function.name}.call{index}", statement))
            parts.append(f"declare i32 @{called[-1].symbol}(ptr)")
            calls.append(_invocation(called[-1].symbol, index, statement, buffers))
            continue
        work[_is_shared(statement, subtarget.vector_bytes)] += cycles_of(statement, subtarget.vector_bytes)
        storage = {
            buffer: Storage(f"%b{number}", is_streamed=_is_streamed(function, buffer))
            for number, buffer in enumerate(buffers)
        }

        def emitter(storage: Mapping[Buffer, Storage] = storage) -> BodyEmitter:
            return BodyEmitter(FunctionWriter(numbers), subtarget, storage, sizes)

        if isinstance(statement, For) and statement.kind is LoopKind.STEPS:
            text, call = _scan(function.name, index, statement, len(buffers), stack_bytes, emitter)
        else:
            text, call = _part(function.name, index, statement, len(buffers), stack_bytes, emitter())
        parts.append(text)
        calls.append(call)
    entry, workspace_bytes = _entry(function, buffers, calls, BodyEmitter(FunctionWriter(), subtarget, {}, sizes))
    declarations = "\n".join(
        (
            "declare void @GOMP_parallel(ptr, ptr, i32, i32)",
            "declare i32 @omp_get_thread_num()",
            "declare i32 @omp_get_num_threads()",
            *(["declare void @GOMP_barrier()"] if any(f"@{BARRIER}(" in part for part in parts) else []),
            *DECLARATIONS,
        )
    )
    loops = _loop_metadata(next(numbers))
    attributes = f"attributes #0 = {{ nounwind {function_attributes(subtarget.vector_bytes)} }}"
    module = "\n\n".join([declarations, *parts, entry, attributes, loops])
    alone, shared = (int(min(cycles, _MOST_CYCLES)) for cycles in work)
    return KernelText(module, workspace_bytes, tuple(called), (alone, shared))


def _is_streamed(function: LoopFunction, buffer: Buffer) -> bool:
    """Whether a buffer holds a packed constant, whose layout is the order in which it is read."""
    is_packed = any(name == buffer.name for name, _ in function.packings)
    return is_packed and math.prod(buffer.shape) * item_bytes(buffer.dtype) > _NEAREST_CACHE


def _loop_metadata(last: int) -> str:
    """Metadata 0 to `last - 1`, a node for each innermost loop: all align it to a cache line. LLVM requires each node
    to be distinct, with itself as its first operand.

    Where two threads share a core, a register tile whose loop spans one more line of code runs at about 0.75 of its
    speed (Zen 3).
    """
    lines = [f"!{number} = distinct !{{!{number}, !{last}}}" for number in range(last)]
    return "\n".join([*lines, f'!{last} = !{{!"llvm.loop.align", i32 {ALIGNMENT}}}'])


def _call_of(symbol: str, statement: Invoke) -> ExternCall:
    args = tuple(
        ExternBuffer(arg.shape, arg.dtype, arg in statement.written) if isinstance(arg, Buffer) else arg
        for arg in statement.args
    )
    return ExternCall(symbol, statement.function, args)


def _invocation(symbol: str, index: int, statement: Invoke, buffers: Sequence[Buffer]) -> str:
    """The lines that call a registered function with the addresses of its buffers, and stop the kernel if it fails."""
    numbers = [buffers.index(arg) for arg in statement.args if isinstance(arg, Buffer)]
    lines = [f"  %args{index} = alloca [{max(1, len(numbers))} x ptr], align 8"]
    for slot, number in enumerate(numbers):
        lines.append(f"  %args{index}.{slot} = getelementptr ptr, ptr %args{index}, i64 {slot}")
        lines.append(f"  store ptr %b{number}, ptr %args{index}.{slot}, align 8")
    lines.append(f"  %code{index} = call i32 @{symbol}(ptr %args{index})")
    lines.append(f"  %fails{index} = icmp ne i32 %code{index}, 0")
    lines.append(f"  br i1 %fails{index}, label %failed{index}, label %returned{index}")
    lines.append(f"failed{index}:")
    lines.append(f"  ret i32 %code{index}")
    lines.append(f"returned{index}:")
    return "\n".join(lines)


def _part(
    name: str, index: int, statement: Stmt, count: int, stack_bytes: int, emitter: BodyEmitter
) -> tuple[str, str]:
    """The functions of one statement, and the lines that run it from the entry."""
    parallel = _is_shared(statement, emitter.subtarget.vector_bytes)
    if isinstance(statement, For) and statement.kind is LoopKind.PARALLEL and not parallel:
        statement = replace(statement, kind=LoopKind.SERIAL)
    _, arguments = _buffer_lists(count)
    body = _body(f"{name}.body{index}", statement, count, stack_bytes, emitter)
    if not isinstance(statement, For) or not parallel:
        return body, f"  call void @{name}.body{index}({arguments}, i64 0, i64 1{sizes_of(emitter)})"
    if isinstance(statement.extent, Dim):
        functions, call = symbolic_part(name, index, statement, arguments, emitter)
        return f"{body}\n\n{functions}", call
    sizes = sizes_of(emitter)
    part = f"@{name}.body{index}({arguments}, i64 %low, i64 %high{sizes})"
    team = team_function(name, index, count, share_of(str(statement.extent)), part, sizes)
    return f"{body}\n\n{team}", fork(
        name, index, f"@{name}.body{index}({arguments}, i64 0, i64 {statement.extent}{sizes})"
    )


def _is_shared(statement: Stmt, vector_bytes: int) -> bool:
    """Whether threads share a statement."""
    if not isinstance(statement, For):
        return False
    if statement.kind is LoopKind.STEPS:
        return any(part.extent for part in parts_of(statement, vector_bytes))
    return statement.kind is LoopKind.PARALLEL and not _is_small(statement, vector_bytes)


def _is_small(loop: For, vector_bytes: int) -> bool:
    """Whether a parallel loop is not worth threads; of a symbolic extent the entry decides when it is known."""
    return isinstance(loop.extent, int) and not is_worth_threads(loop, vector_bytes)


def _scan(
    name: str, index: int, loop: For, count: int, stack_bytes: int, emitter: Callable[[], BodyEmitter]
) -> tuple[str, str]:
    """The functions of the steps of a scan, and the lines that run them from the entry."""
    params, arguments = _buffer_lists(count)
    parts = parts_of(loop, emitter().subtarget.vector_bytes)
    bodies = [
        _body(f"{name}.scan{index}.{number}", part.statement, count, stack_bytes, emitter(), loop.var)
        for number, part in enumerate(parts)
    ]
    symbol, sizes = f"{name}.scan{index}", sizes_of(emitter())
    functions = [*bodies, scan_function(symbol, parts, loop.extent, params, arguments, sizes)]
    if isinstance(loop.extent, Dim):
        functions.append(extent_function(f"{symbol}.steps", loop.extent, emitter()))
    alone = f"@{symbol}({arguments}, i64 0, i64 1{sizes})"
    if not any(part.extent for part in parts):
        return "\n\n".join(functions), f"  call void {alone}"
    enter = "  %some = icmp ult i64 %me, %all"
    call = f"@{symbol}({arguments}, i64 %me, i64 %all{sizes})"
    functions.append(team_function(name, index, count, (enter,), call, sizes))
    return "\n\n".join(functions), fork(name, index, alone)


def _buffer_lists(count: int) -> tuple[str, str]:
    """The parameters and the arguments of functions that get all buffers of the kernel."""
    params = ", ".join(f"ptr noalias nocapture align {ALIGNMENT} %b{number}" for number in range(count))
    return params, ", ".join(f"ptr %b{number}" for number in range(count))


def _body(
    symbol: str, statement: Stmt, count: int, stack_bytes: int, emitter: BodyEmitter, step: Var | None = None
) -> str:
    """The function of one statement, of a share of its iterations if it is parallel; `step` is that of its scan."""
    sizes = sizes_of(emitter)
    if step is not None:
        emitter = emitter.bind(step, Scalar("%step", 0))
    if isinstance(statement, For) and statement.kind is LoopKind.PARALLEL:
        with emitter.writer.loop("%low", "%high") as counter:
            emitter.bind(statement.var, counter).statement(statement.body)
    else:
        emitter.statement(statement)
    needed = emitter.writer.stack_bytes
    if needed > stack_bytes:
        raise LoweringError(
            f"{symbol.partition('.')[0]}: its local buffers take {needed} bytes of stack, more than {stack_bytes}; "
            "use smaller tiles or compute the stage further out"
        )
    emitter.writer.put("ret void")
    params, _ = _buffer_lists(count)
    steps = "" if step is None else ", i64 %step"
    return (
        f"define internal void @{symbol}({params}, i64 %low, i64 %high{steps}{sizes}) #0 {{\n"
        f"entry:\n{emitter.writer.text()}\n}}"
    )


def _entry(
    function: LoopFunction, buffers: Sequence[Buffer], calls: Sequence[str], emitter: BodyEmitter
) -> tuple[str, int]:
    """The exported function, which loads the buffers' addresses and runs the statements in order, and the bytes of the
    workspace.
    """
    functions = []
    sizes = "".join(f", i64 %size{number}" for number in range(len(function.symbols)))
    slots = len(function.symbols) + 1 if function.symbols else 0  # and an extent
    lines = [
        f"define i32 @{function.name}(ptr %buffers, i32 %threads{sizes}) #0 {{",
        "entry:",
        "  %single = icmp sle i32 %threads, 1",
        f"  %context = alloca [{len(buffers) + slots} x ptr], align 8",
    ]
    inner = len(function.params)
    if function.workspace:
        lines.append(f"  %w.slot = getelementptr ptr, ptr %buffers, i64 {inner}")
        lines.append("  %workspace = load ptr, ptr %w.slot, align 8")
    offset = 0
    for number, buffer in enumerate(buffers):
        if number < inner:
            lines.append(f"  %s{number} = getelementptr ptr, ptr %buffers, i64 {number}")
            lines.append(f"  %b{number} = load ptr, ptr %s{number}, align 8")
        else:
            begin = str(offset)
            if isinstance(offset, Dim):
                begin, symbol = f"%begin{number}", f"{function.name}.begin{number}"
                functions.append(extent_function(symbol, offset, emitter))
                lines.append(f"  {begin} = call i64 @{symbol}({sizes.removeprefix(', ')})")
            lines.append(f"  %b{number} = getelementptr i8, ptr %workspace, i64 {begin}")
            # The next multiple of `ALIGNMENT`, which the parameters of the parts promise to LLVM.
            offset += -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT
        lines.append(f"  %c{number} = getelementptr ptr, ptr %context, i64 {number}")
        lines.append(f"  store ptr %b{number}, ptr %c{number}, align 8")
    for number in range(len(function.symbols)):
        lines.append(f"  %c.size{number} = getelementptr ptr, ptr %context, i64 {len(buffers) + number}")
        lines.append(f"  store i64 %size{number}, ptr %c.size{number}, align 8")
    return "\n".join([*functions, *lines, *calls, "  ret i32 0", "}"]), offset
