"""Measures the peak of float32 operations per second that a number of threads reaches.

It runs fused multiply-adds on full registers, compiled by Retune's own back end; nothing is looked up.
"""

import time
from functools import cache

from retune.compiler.codegen.backend import backend_of
from retune.compiler.codegen.cpu import compile_module, function_attributes
from retune.compiler.core.target import Target
from retune.compiler.runtime.artifact import ArgSpec, KernelArtifact
from retune.compiler.runtime.buffers import aligned_array
from retune.compiler.runtime.loader import BoundKernel, load_kernels
from retune.compiler.runtime.sequence import KernelSequence

ACCUMULATORS = 12
"""Independent chains: more than latency times throughput of any known CPU, fewer than the 16 registers of AVX2."""

# 12 chains at two multiply-adds a cycle take 6 cycles a step: 0.3 ms at 4 GHz, long compared with the fork of threads
# and short compared with a time slice.
STEPS = 200_000
REPEATS = 20
MOST_REPEATS = 200
AGREEING, NEARLY, SCALING = 5, 1.02, 0.97
"""Enough tries: this many are this close to the best, and several threads reach this share of the scaled peak of one
thread. A machine that is busy, or throttles, takes `MOST_REPEATS`.
"""

# Between tries other processes get the CPU, so that the next try does not lose its core in the middle.
_PAUSE_SECONDS = 0.01


@cache
def measured_peak(threads: int) -> float:
    """GFLOP/s of `threads` threads: the best of several tries, since other load only slows them down."""
    kernel, work = peak_kernel(threads)
    run = KernelSequence([kernel])
    run()
    expected = SCALING * threads * measured_peak(1) if threads > 1 else 0.0
    times: list[float] = []
    while len(times) < REPEATS or (len(times) < MOST_REPEATS and not (_agree(times) and work / min(times) >= expected)):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
        time.sleep(_PAUSE_SECONDS)
    return work / min(times)


def peak_kernel(threads: int, steps: int = STEPS) -> tuple[BoundKernel, float]:
    """A call of `steps` multiply-adds of each chain, on each of `threads` threads, and its GFLOP."""
    target = Target.host()
    text, lanes = peak_module(target, steps)
    args = (
        ArgSpec("factors", (lanes,), "float32", False),
        ArgSpec("sums", (threads, lanes), "float32", True),
    )
    code = compile_module(text, target)
    factors, sums = (aligned_array(arg.shape, arg.dtype) for arg in args)
    # a = 0.5 a + 0.5 converges to 1: no overflow, no subnormal numbers, which some CPUs compute slowly.
    factors[...] = 0.5
    kernels = load_kernels([KernelArtifact("peak", code, args, 0, str(target))])
    return kernels["peak"].bind([factors, sums], threads), 2.0 * lanes * ACCUMULATORS * steps * threads / 1e9


def peak_module(target: Target, steps: int = STEPS) -> tuple[str, int]:
    """The kernel for a target as LLVM text, and the float32 lanes of its vectors."""
    # Vectors wider than the registers would be spilled: half the speed on a CPU without AVX-512.
    width = backend_of(target).hardware(target, 1).vector_unit_bytes
    return _module(width // 4, function_attributes(width), steps), width // 4


def _agree(times: list[float]) -> bool:
    """Whether enough tries are about as fast as the fastest."""
    return sorted(times)[AGREEING - 1] <= NEARLY * min(times)


def _module(lanes: int, attributes: str, number: int) -> str:
    """A kernel: each thread does `number` times `ACCUMULATORS` multiply-adds `a = a * x + x`, then stores the sum."""
    vector = f"<{lanes} x float>"
    fma = f"@llvm.fma.v{lanes}f32"
    numbers = range(ACCUMULATORS)
    chains = "\n".join(f"  %a{n} = phi {vector} [ %x, %entry ], [ %b{n}, %loop ]" for n in numbers)
    steps = "\n".join(f"  %b{n} = call {vector} {fma}({vector} %a{n}, {vector} %x, {vector} %x)" for n in numbers)
    sums = "\n".join(f"  %s{n} = fadd {vector} {f'%s{n - 1}' if n > 1 else '%b0'}, %b{n}" for n in numbers if n > 0)
    return f"""
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare {vector} {fma}({vector}, {vector}, {vector})

define internal void @peak.team(ptr %buffers) #0 {{
entry:
  %factors = load ptr, ptr %buffers
  %x = load {vector}, ptr %factors
  %slot = getelementptr ptr, ptr %buffers, i64 1
  %out = load ptr, ptr %slot
  %number = call i32 @omp_get_thread_num()
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{chains}
{steps}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, {number}
  br i1 %more, label %loop, label %done
done:
{sums}
  %own = getelementptr {vector}, ptr %out, i32 %number
  store {vector} %s{ACCUMULATORS - 1}, ptr %own
  ret void
}}

define i32 @peak(ptr %buffers, i32 %threads) #0 {{
entry:
  call void @GOMP_parallel(ptr @peak.team, ptr %buffers, i32 %threads, i32 0)
  ret i32 0
}}

attributes #0 = {{ nounwind {attributes} }}
"""
