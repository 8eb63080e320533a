"""Gives each thread of a parallel region CPUs of its own.

Linux may wake a thread on the CPU of the thread that wakes it though another one is idle: on a virtual machine an idle
CPU, which its host does not run, looks taken. From then on both threads share that CPU. MobileNet-V2 took 11 ms instead
of 4 ms on two cores wherever there were pauses between its runs.

The CPUs that the calling thread may use are divided into as many shares as there are threads, each of whole cores where
there are enough. The threads that it starts are bound to one share each, for good; the caller itself only while it
runs kernels, and only if it was moved out of its share. What OpenMP's variables say of places wins.
"""

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from retune.compiler import config
from retune.compiler.errors import ArtifactError
from retune.compiler.runtime.affinity import order_by_core
from retune.compiler.runtime.loader import native_address

_CPUS = 1024
"""The CPUs of glibc's `cpu_set_t`; threads are not bound where there are more."""
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
  %same = icmp eq i32 %for, %threads
  br i1 %same, label %yes, label %no
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
  %length = call i32 @sched_getaffinity(i32 0, i64 {MASK_BYTES}, ptr %before)
  %allowed = load <{_WORDS} x i64>, ptr %before, align 8
  %share = getelementptr i8, ptr %places, i64 {_HEADER_BYTES + _CPUS}
  %mine = load <{_WORDS} x i64>, ptr %share, align 4
  %both = and <{_WORDS} x i64> %allowed, %mine
  %any = call i64 @llvm.vector.reduce.or.v{_WORDS}i64(<{_WORDS} x i64> %both)
  %empty = icmp eq i64 %any, 0
  br i1 %empty, label %no, label %bind
bind:
  store <{_WORDS} x i64> %both, ptr %wanted
  %ignored = call i32 @sched_setaffinity(i32 0, i64 {MASK_BYTES}, ptr %wanted)
  ret i1 true
no:
  ret i1 false
}}
declare i64 @llvm.vector.reduce.or.v{_WORDS}i64(<{_WORDS} x i64>)
declare ptr @pthread_getspecific(i32)
declare i32 @sched_getcpu()
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i32 @sched_getaffinity(i32, i64, ptr)
"""
"""LLVM text. `retune_places` tells where the calling thread's regions of so many threads run: null where they were not
placed; else the number of threads, a byte for each CPU, 1 in the caller's share, and that share as a mask.
`retune_was_moved` tells whether the caller runs elsewhere; `retune_bind_caller` stores on which CPUs it may run, and
binds it to those of its share, if there are any of them."""

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

_placed: dict[tuple[int, tuple[int, ...]], Any] = {}
"""What `retune_places` finds, by number of threads and the caller's share; threads point to it, so it stays."""


@cache
def decides() -> bool:
    """Whether threads are bound here: not where the user's environment says where they run."""
    return not config.user_places_threads() and (os.cpu_count() or 1) <= _CPUS


def shares_of(cpus: Sequence[int], threads: int) -> list[tuple[int, ...]]:
    """`cpus` in as many shares of neighbors as there are threads; all of them in each where they are too few."""
    if len(cpus) < threads:
        return [tuple(cpus)] * threads
    bounds = [number * len(cpus) // threads for number in range(threads + 1)]
    return [tuple(cpus[start:stop]) for start, stop in pairwise(bounds)]


def place_threads(threads: int) -> None:
    """Bind the threads that the calling thread's regions of so many threads start, and note the caller's share."""
    shares = shares_of(order_by_core(os.sched_getaffinity(0)), threads)
    here = _libc().sched_getcpu()
    mine = next((share for share in shares if here in share), shares[0])
    if shares.count(mine) == 1:
        others = (share for share in shares if share is not mine)
        _bind()(b"".join(map(_mask, (mine, *others))), threads)
    if (threads, mine) not in _placed:
        flags = bytes(cpu in mine or len(set(shares)) == 1 for cpu in range(_CPUS))
        known = threads.to_bytes(_HEADER_BYTES, "little") + flags + _mask(mine)
        _placed[threads, mine] = ctypes.create_string_buffer(known, len(known))
    _libc().pthread_setspecific(key(), ctypes.c_void_p(ctypes.addressof(_placed[threads, mine])))


@cache
def key() -> int:
    """The key under which a thread finds where its regions run."""
    made = ctypes.c_uint32()
    if _libc().pthread_key_create(ctypes.byref(made), None):
        raise ArtifactError("no key for a thread's own data is left in this process")
    # libgomp's threads end before a fork, see `openmp`, and those that come after it are not bound.
    os.register_at_fork(before=lambda: _libc().pthread_setspecific(made.value, None))
    return made.value


def _mask(cpus: Sequence[int]) -> bytes:
    return sum(1 << cpu for cpu in cpus).to_bytes(MASK_BYTES, "little")


@cache
def _bind() -> Any:
    return ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int32)(native_address(_BIND, "retune_bind"))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
