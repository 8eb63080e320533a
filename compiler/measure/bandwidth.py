"""Measures the memory bandwidth that a number of threads reaches, with a kernel that only reads and writes.

Every call touches the same bytes, so data that fits into a cache stays there, as for the kernels compared with it. The
kernel is LLVM text, compiled by Retune's own back end.
"""

from retune.compiler.codegen.backend import backend_of
from retune.compiler.codegen.cpu import compile_module, function_attributes
from retune.compiler.core.target import Target
from retune.compiler.runtime.artifact import ArgSpec, KernelArtifact
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.loader import BoundKernel, load_kernels

UNROLL = 8
"""Vectors an iteration: independent, so that many accesses are in flight."""


def stream_kernel(read_bytes: int, written_bytes: int, threads: int) -> tuple[BoundKernel, int]:
    """A call that reads and writes about `read_bytes` and `written_bytes`, each byte once and in order, and the total
    bytes.

    Reads are summed, or copied as far as there is anything to write; the excess of the larger side comes after that.
    """
    target = Target.host()
    width = backend_of(target).hardware(target, threads).vector_unit_bytes
    lanes, block = width // 4, width * UNROLL * threads
    read, written = (max(1, round(size / block)) for size in (read_bytes, written_bytes))
    text = _module(lanes, read, written, threads, function_attributes(width))
    args = (
        ArgSpec("source", (read * block // 4,), "float32", False),
        ArgSpec("target", (written * block // 4,), "float32", True),
        ArgSpec("sums", (threads * lanes,), "float32", True),
    )
    artifact = KernelArtifact("stream", compile_module(text, target), args, 0, str(target))
    buffers = [aligned_array(arg.shape, arg.dtype) for arg in args]
    for buffer in buffers:
        # Written once: untouched pages of zeros are one shared page of the kernel, which stays in the first-level
        # cache.
        buffer[...] = 1.0
    return load_kernels([artifact])["stream"].bind(buffers, threads), (read + written) * block


def _module(lanes: int, read: int, written: int, threads: int, attributes: str) -> str:
    """A kernel: each thread copies, then reads or writes the excess, in blocks of `UNROLL` vectors."""
    vector, block = f"<{lanes} x float>", lanes * UNROLL
    # The smaller side is moved as a copy, so that loads and stores overlap as they do in a kernel.
    copied = min(read, written)
    alone = "call void @stream.team(ptr %buffers)"
    team = "call void @GOMP_parallel(ptr @stream.team, ptr %buffers, i32 %threads, i32 0)"
    loops = [
        _loop("copy", "entry", range(copied), vector, lanes, loads=True, stores=True),
        _loop("read", "copy.done", range(copied, read), vector, lanes, loads=True, stores=False),
        _loop("write", "read.done", range(copied, written), vector, lanes, loads=False, stores=True),
    ]
    return f"""
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()

define internal void @stream.team(ptr %buffers) #0 {{
entry:
  %source.all = load ptr, ptr %buffers
  %target.slot = getelementptr ptr, ptr %buffers, i64 1
  %target.all = load ptr, ptr %target.slot
  %sums.slot = getelementptr ptr, ptr %buffers, i64 2
  %sums = load ptr, ptr %sums.slot
  %number = call i32 @omp_get_thread_num()
  %me = zext i32 %number to i64
  %source.skip = mul i64 %me, {read * block}
  %source = getelementptr float, ptr %source.all, i64 %source.skip
  %target.skip = mul i64 %me, {written * block}
  %target = getelementptr float, ptr %target.all, i64 %target.skip
  %own = getelementptr {vector}, ptr %sums, i64 %me
{chr(10).join(loops)}
  ret void
}}

define i32 @stream(ptr %buffers, i32 %threads) #0 {{
entry:
  {alone if threads == 1 else team}
  ret i32 0
}}

attributes #0 = {{ nounwind {attributes} }}
"""


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
        lines += [
            f"  %{name}.c{n} = fadd {vector} {f'%{name}.c{n - 1}' if n > 1 else f'%{name}.b0'}, %{name}.b{n}"
            for n in numbers
            if n
        ]
        # The sum is stored, or LLVM would delete the loads as dead code.
        lines.append(f"  store {vector} %{name}.c{UNROLL - 1}, ptr %own")
    return "\n".join(lines)
