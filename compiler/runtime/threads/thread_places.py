"""Binds each thread of a parallel region to CPUs of its own.

Linux may wake a thread on the CPU of the waking thread though another CPU is idle: on a virtual machine an idle CPU,
which its host does not run, looks busy. From then on both threads share that CPU. MobileNet-V2 took 11 ms instead of 4
ms on two cores whenever there were pauses between its runs.

The CPUs of the calling thread are divided into as many shares as there are threads, each of whole cores if there are
enough. Its worker threads are bound to one share each, for good. The caller is moved back when it has left its share,
and bound for the rest of a run if it leaves again. OpenMP's place variables take precedence. Threads that sleep at once
are not bound: a bound sleeping thread waits for its CPU while another is idle.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

from retune.compiler.core import config
from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.loader import native_address
from retune.compiler.runtime.threads.affinity import cores_of

_CPUS = 1024
"""The CPUs of glibc's `cpu_set_t`; with more, threads are not bound."""
MASK_BYTES, _WORDS = _CPUS // 8, _CPUS // 64
_HEADER_BYTES = 4

FUNCTIONS = f"""
define ptr @retune_places(i32 %threads, i32 %key) {{
entry:
  %known = call ptr @pthread_getspecific(i32 %key)
  %none = icmp eq ptr %known, null
  br i1 %none, label %no, label %compare
compare:
  %for = load i32, ptr %known
  %enough = icmp sge i32 %for, %threads
  br i1 %enough, label %yes, label %no
yes:
  ret ptr %known
no:
  ret ptr null
}}
define i1 @retune_was_moved(ptr %places) {{
entry:
  %cpu = call i32 @sched_getcpu()
  %inside = icmp ult i32 %cpu, {_CPUS}
  br i1 %inside, label %look, label %no
look:
  %flags = getelementptr i8, ptr %places, i64 {_HEADER_BYTES}
  %flag = getelementptr i8, ptr %flags, i32 %cpu
  %mine = load i8, ptr %flag
  %moved = icmp eq i8 %mine, 0
  ret i1 %moved
no:
  ret i1 false
}}
define i1 @retune_bind_caller(ptr %places, ptr %before) {{
entry:
  %wanted = alloca <{_WORDS} x i64>
  %failed = call i32 @sched_getaffinity(i32 0, i64 {MASK_BYTES}, ptr %before)
  %known = icmp eq i32 %failed, 0
  br i1 %known, label %look, label %no
look:
  %allowed = load <{_WORDS} x i64>, ptr %before, align 8
  %share = getelementptr i8, ptr %places, i64 {_HEADER_BYTES + _CPUS}
  %mine = load <{_WORDS} x i64>, ptr %share, align 4
  %both = and <{_WORDS} x i64> %allowed, %mine
  %any = call i64 @llvm.vector.reduce.or.v{_WORDS}i64(<{_WORDS} x i64> %both)
  %empty = icmp eq i64 %any, 0
  br i1 %empty, label %yes, label %bind
bind:
  store <{_WORDS} x i64> %both, ptr %wanted
  %ignored = call i32 @sched_setaffinity(i32 0, i64 {MASK_BYTES}, ptr %wanted)
  br label %yes
yes:
  ret i1 true
no:
  ret i1 false
}}
declare ptr @pthread_getspecific(i32)
declare i32 @sched_getcpu()
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i32 @sched_getaffinity(i32, i64, ptr)
"""
"""LLVM text. `retune_places`: CPU mask that this thread's regions of up to `n` threads are bound to, or null. Layout:
the number of threads, a byte per CPU (1 in the caller's share), the share as a mask. `retune_was_moved`: whether the
caller runs outside its share. `retune_bind_caller`: store the caller's allowed CPUs, and bind it to its share if any of
them are in it.
"""

_BIND = f"""
define void @retune_bind.team(ptr %masks) {{
entry:
  %number = call i32 @omp_get_thread_num()
  %is_caller = icmp eq i32 %number, 0
  br i1 %is_caller, label %done, label %bind
bind:
  %offset = mul i32 %number, {MASK_BYTES}
  %mask = getelementptr i8, ptr %masks, i32 %offset
  %ignored = call i32 @sched_setaffinity(i32 0, i64 {MASK_BYTES}, ptr %mask)
  br label %done
done:
  ret void
}}
define void @retune_bind(ptr %masks, i32 %threads) {{
  call void @GOMP_parallel(ptr @retune_bind.team, ptr %masks, i32 %threads, i32 0)
  ret void
}}
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @sched_setaffinity(i32, i64, ptr)
"""

_placed: dict[tuple[int, tuple[int, ...], bool], "ctypes.Array[ctypes.c_char]"] = {}
"""Buffers of `retune_places`, by number of threads, the caller's share, and whether no other thread has it; threads
point to them, so they stay.
"""


@cache
def binds_threads() -> bool:
    """Whether threads are bound here: not if the user's environment places them, or lets them sleep."""
    is_free = config.user_places_threads() or config.threads_sleep_at_once()
    return not is_free and max(os.sched_getaffinity(0)) < _CPUS


def shares_of(cores: Sequence[Sequence[int]], threads: int) -> list[tuple[int, ...]]:
    """The CPUs of `cores` in `threads` shares of neighbors: whole cores if there are enough, else CPUs; all CPUs in
    every share if there are too few.
    """
    cpus = [(cpu,) for core in cores for cpu in core]
    if len(cpus) < threads:
        return [tuple(cpu for (cpu,) in cpus)] * threads
    parts = cores if len(cores) >= threads else cpus
    bounds = [number * len(parts) // threads for number in range(threads + 1)]
    return [tuple(cpu for part in parts[start:stop] for cpu in part) for start, stop in pairwise(bounds)]


def place_threads(threads: int) -> None:
    """Bind the workers of the calling thread's regions of `threads` threads, and note the caller's share."""
    shares = shares_of(cores_of(os.sched_getaffinity(0)), threads)
    cpu = _LIBC.sched_getcpu()
    share = next((other for other in shares if cpu in other), shares[0])
    is_alone = shares.count(share) == 1
    if is_alone:
        others = (other for other in shares if other is not share)
        _bind()(b"".join(map(_mask, (share, *others))), threads)
    flags = bytes(number in share or not is_alone for number in range(_CPUS))
    layout = threads.to_bytes(_HEADER_BYTES, "little") + flags + _mask(share)
    # If two threads make the same layout, both point to the first's buffer.
    buffer = _placed.setdefault((threads, share, is_alone), ctypes.create_string_buffer(layout, len(layout)))
    _LIBC.pthread_setspecific(KEY, ctypes.c_void_p(ctypes.addressof(buffer)))


def _create_key() -> int:
    made = ctypes.c_uint32()
    if _LIBC.pthread_key_create(ctypes.byref(made), None):
        raise ArtifactError("no key for a thread's own data is left in this process")
    # libgomp's threads end before a fork, see `openmp`, and their successors are not bound.
    os.register_at_fork(before=lambda: _LIBC.pthread_setspecific(made.value, None))
    return made.value


def _mask(cpus: Sequence[int]) -> bytes:
    return sum(1 << cpu for cpu in cpus).to_bytes(MASK_BYTES, "little")


@cache
def _bind() -> Callable[[bytes, int], None]:
    return ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int32)(native_address(_BIND, "retune_bind"))


_LIBC = ctypes.CDLL(None)
KEY = _create_key()
"""The thread-specific key of a thread's `_placed` buffer; created once, at import."""
