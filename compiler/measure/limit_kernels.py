"""Kernels that reach the limits of a CPU: `peak_kernel` its float32 operations a second, `stream_kernel` its bandwidth.

They are LLVM text, compiled by Retune's own back end; nothing is looked up.
"""

from collections.abc import Sequence

from retune.compiler.codegen.backend import backend_of
from retune.compiler.codegen.cpu import compile_module, function_attributes
from retune.compiler.core.target import Target
from retune.compiler.runtime.artifact import ArgSpec, KernelArtifact
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.loader import BoundKernel, load_kernels

ACCUMULATORS = 12
"""Independent chains: more than latency times throughput of any known CPU, fewer than the 16 registers of AVX2."""

# 12 chains at two multiply-adds a cycle take 6 cycles a step: 0.3 ms at 4 GHz, long compared with the fork of threads
# and short compared with a time slice.
STEPS = 200_000
UNROLL = 8
"""Vectors an iteration of a stream: independent, so that many accesses are in flight."""


def peak_kernel(threads: int, steps: int = STEPS) -> tuple[BoundKernel, float]:
    """A call of `steps` multiply-adds of each chain, on each of `threads` threads, and its GFLOP."""
    target = Target.host()
    text, lanes = peak_module(target, steps)
    args = (ArgSpec("factors", (lanes,), "float32", False), ArgSpec("sums", (threads, lanes), "float32", True))
    # a = 0.5 a + 0.5 converges to 1: no overflow, no subnormal numbers, which some CPUs compute slowly.
    return _bound(text, args, threads, 0.5), 2.0 * lanes * ACCUMULATORS * steps * threads / 1e9


def stream_kernel(read_bytes: int, written_bytes: int, threads: int) -> tuple[BoundKernel, int]:
    """A call that reads and writes about `read_bytes` and `written_bytes`, each byte once and in order, and the total
    bytes. Every call touches the same bytes, so data that fits into a cache stays there.

    Reads are summed, or copied as far as there is anything to write; the excess of the larger side comes after that.
    """
    target = Target.host()
    width = backend_of(target).hardware(target, threads).vector_unit_bytes
    lanes, block = width // 4, width * UNROLL * threads
    read, written = (max(1, round(size / block)) for size in (read_bytes, written_bytes))
    args = (
        ArgSpec("source", (read * block // 4,), "float32", False),
        ArgSpec("target", (written * block // 4,), "float32", True),
        ArgSpec("sums", (threads * lanes,), "float32", True),
    )
    text = _team_module(_stream_code(lanes, read, written), function_attributes(width), is_parallel=threads > 1)
    # Written once: untouched pages of zeros are one shared page of the kernel, which stays in the first-level cache.
    return _bound(text, args, threads, 1.0), (read + written) * block


def peak_module(target: Target, steps: int = STEPS) -> tuple[str, int]:
    """The kernel for a target as LLVM text, and the float32 lanes of its vectors."""
    # Vectors wider than the registers would be spilled: half the speed on a CPU without AVX-512.
    width = backend_of(target).hardware(target, 1).vector_unit_bytes
    declaration, code = _peak_code(width // 4, steps)
    return f"{declaration}\n{_team_module(code, function_attributes(width))}", width // 4


def _bound(text: str, args: Sequence[ArgSpec], threads: int, content: float) -> BoundKernel:
    """The function `kernel` of a module of this machine, bound to arrays that are full of `content`."""
    target = Target.host()
    artifact = KernelArtifact("kernel", compile_module(text, target), tuple(args), 0, str(target))
    buffers = [aligned_array(arg.shape, arg.dtype) for arg in args]
    for buffer in buffers:
        buffer[...] = content
    return load_kernels([artifact])["kernel"].bind(buffers, threads)


def _team_module(code: str, attributes: str, *, is_parallel: bool = True) -> str:
    """A module of the function `kernel`, in which every thread runs `code`. It begins in the block `entry`, where
    `%number` is that of the thread, and ends where the function returns.
    """
    alone = "call void @team(ptr %buffers)"
    return f"""
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()

define internal void @team(ptr %buffers) #0 {{
entry:
  %number = call i32 @omp_get_thread_num()
{code}
  ret void
}}

define i32 @kernel(ptr %buffers, i32 %threads) #0 {{
entry:
  {"call void @GOMP_parallel(ptr @team, ptr %buffers, i32 %threads, i32 0)" if is_parallel else alone}
  ret i32 0
}}

attributes #0 = {{ nounwind {attributes} }}
"""


def _peak_code(lanes: int, steps: int) -> tuple[str, str]:
    """A declaration, and code of `steps` times `ACCUMULATORS` multiply-adds `a = a * x + x`, whose sum is stored."""
    vector = f"<{lanes} x float>"
    fma = f"{vector} @llvm.fma.v{lanes}f32"
    numbers = range(ACCUMULATORS)
    chains = "\n".join(f"  %a{n} = phi {vector} [ %x, %entry ], [ %b{n}, %loop ]" for n in numbers)
    products = "\n".join(f"  %b{n} = call {fma}({vector} %a{n}, {vector} %x, {vector} %x)" for n in numbers)
    code = f"""
  %factors = load ptr, ptr %buffers
  %x = load {vector}, ptr %factors
  %slot = getelementptr ptr, ptr %buffers, i64 1
  %out = load ptr, ptr %slot
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{chains}
{products}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, {steps}
  br i1 %more, label %loop, label %done
done:
{_sum("", vector, ACCUMULATORS)}
  %own = getelementptr {vector}, ptr %out, i32 %number
  store {vector} %c{ACCUMULATORS - 1}, ptr %own"""
    return f"declare {fma}({vector}, {vector}, {vector})", code


def _sum(prefix: str, vector: str, count: int) -> str:
    """Code that sums the vectors `b0`, `b1`, … of a prefix into the last `c`."""
    return "\n".join(
        f"  %{prefix}c{n} = fadd {vector} %{prefix}{f'c{n - 1}' if n > 1 else 'b0'}, %{prefix}b{n}"
        for n in range(1, count)
    )


def _stream_code(lanes: int, read: int, written: int) -> str:
    """Code that copies, then reads or writes the excess, in blocks of `UNROLL` vectors."""
    vector, block = f"<{lanes} x float>", lanes * UNROLL
    # The smaller side is moved as a copy, so that loads and stores overlap as they do in a kernel.
    copied = min(read, written)
    loops = [
        _loop("copy", "entry", range(copied), vector, lanes, loads=True, stores=True),
        _loop("read", "copy.done", range(copied, read), vector, lanes, loads=True, stores=False),
        _loop("write", "read.done", range(copied, written), vector, lanes, loads=False, stores=True),
    ]
    return f"""
  %source.all = load ptr, ptr %buffers
  %target.slot = getelementptr ptr, ptr %buffers, i64 1
  %target.all = load ptr, ptr %target.slot
  %sums.slot = getelementptr ptr, ptr %buffers, i64 2
  %sums = load ptr, ptr %sums.slot
  %me = zext i32 %number to i64
  %source.skip = mul i64 %me, {read * block}
  %source = getelementptr float, ptr %source.all, i64 %source.skip
  %target.skip = mul i64 %me, {written * block}
  %target = getelementptr float, ptr %target.all, i64 %target.skip
  %own = getelementptr {vector}, ptr %sums, i64 %me
{chr(10).join(loops)}"""


def _loop(name: str, before: str, blocks: range, vector: str, lanes: int, *, loads: bool, stores: bool) -> str:
    """Code for `blocks` of memory, from the end of block `before` to a block called `name.done`."""
    if not blocks:
        return f"  br label %{name}.done\n{name}.done:"
    # One accumulator a vector of the iteration: a single chain of fadd would measure its latency, not the memory.
    numbers = range(UNROLL)
    lines = [
        f"  br label %{name}",
        f"{name}:",
        f"  %{name}.i = phi i64 [ {blocks.start}, %{before} ], [ %{name}.next, %{name} ]",
    ]
    if not stores:
        lines += [
            f"  %{name}.a{n} = phi {vector} [ zeroinitializer, %{before} ], [ %{name}.b{n}, %{name} ]" for n in numbers
        ]
    lines.append(f"  %{name}.at = mul i64 %{name}.i, {UNROLL * lanes}")
    for n in numbers:
        lines.append(f"  %{name}.p{n} = add i64 %{name}.at, {n * lanes}")
        if loads:
            lines.append(f"  %{name}.s{n} = getelementptr float, ptr %source, i64 %{name}.p{n}")
            lines.append(f"  %{name}.v{n} = load {vector}, ptr %{name}.s{n}")
        if stores:
            value = f"%{name}.v{n}" if loads else "zeroinitializer"
            lines.append(f"  %{name}.t{n} = getelementptr float, ptr %target, i64 %{name}.p{n}")
            lines.append(f"  store {vector} {value}, ptr %{name}.t{n}")
        else:
            lines.append(f"  %{name}.b{n} = fadd {vector} %{name}.a{n}, %{name}.v{n}")
    lines += [
        f"  %{name}.next = add i64 %{name}.i, 1",
        f"  %{name}.more = icmp ult i64 %{name}.next, {blocks.stop}",
        f"  br i1 %{name}.more, label %{name}, label %{name}.done",
        f"{name}.done:",
    ]
    if not stores:
        lines.append(_sum(f"{name}.", vector, UNROLL))
        # The sum is stored, or LLVM would delete the loads as dead code.
        lines.append(f"  store {vector} %{name}.c{UNROLL - 1}, ptr %own")
    return "\n".join(lines)
