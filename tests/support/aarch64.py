"""Runs kernels and networks that were compiled for AArch64: a C program that calls them, in the emulator QEMU.

It takes Debian's packages gcc-aarch64-linux-gnu and qemu-user-static.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retune.compiler.core.dtype import number_type
from retune.compiler.runtime.artifact import ALIGNMENT, KernelArtifact
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.plan import BufferKind

Array = NDArray[Any]

_COMPILER, _EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"
_SECONDS = 600
_FENCE = 4096
"""Bytes behind every buffer of a kernel, which it must leave as they are."""

_PROGRAM = """\
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum {{ FENCE = {fence} }};
{declarations}
static char *memory[{count}];
static const long sizes[{count}] = {{ {sizes} }};
static char *fenced(long size) {{
  char *made = aligned_alloc({alignment}, (size + FENCE + {alignment} - 1) / {alignment} * {alignment});
  if (!made) exit(3);
  memset(made, 0xA5, size + FENCE);
  return made;
}}
static void transfer(FILE *file, const long *which, long count, int write) {{
  for (long i = 0; i < count; i++) {{
    char *at = memory[which[i]];
    size_t size = sizes[which[i]];
    if ((write ? fwrite(at, 1, size, file) : fread(at, 1, size, file)) != size) exit(4);
  }}
}}
int main(int argc, char **argv) {{
  static const long given[] = {{ {given} -1 }}, wanted[] = {{ {wanted} -1 }};
  for (long i = 0; i < {count}; i++) memory[i] = fenced(sizes[i]);
  FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
  transfer(in, given, sizeof given / sizeof *given - 1, 0);
{calls}
  for (long i = 0; i < {count}; i++)
    for (long j = 0; j < FENCE; j++)
      if (memory[i][sizes[i] + j] != (char)0xA5) {{ fprintf(stderr, "written behind buffer %ld\\n", i); return 5; }}
  transfer(out, wanted, sizeof wanted / sizeof *wanted - 1, 1);
  return fclose(out);
}}
"""


def missing() -> str:
    """What of the tools is not installed; empty where all are."""
    return ", ".join(tool for tool in (_COMPILER, _EMULATOR) if shutil.which(tool) is None)


def run_kernel(kernel: KernelArtifact, inputs: Sequence[Array], folder: Path, threads: int = 2) -> list[Array]:
    """The outputs of a kernel for arrays of its inputs, which are packed as it reads them."""
    arrays = [
        array if spec.packing is None else spec.packing.pack(array)
        for spec, array in zip(kernel.inputs, inputs, strict=True)
    ]
    sizes = [spec.nbytes for spec in kernel.args]
    given = [place for place, spec in enumerate(kernel.args) if not spec.is_output]
    wanted = [place for place, spec in enumerate(kernel.args) if spec.is_output]
    data = b"".join(array.tobytes() for array in arrays)
    calls = [(kernel.name, [f"memory[{place}]" for place in range(len(sizes))])]
    found = _run([kernel], sizes, given, wanted, calls, data, folder, threads)
    return _split(found, [(spec.shape, spec.dtype) for spec in kernel.outputs])


def run_network(network: CompiledNetwork, inputs: Mapping[str, Array], folder: Path, threads: int = 2) -> list[Array]:
    """The outputs of a network, which runs as an executor runs it: its calls in order, intermediates in one arena."""
    plan = network.plan
    arena = len(plan.buffers)
    sizes = [buffer.nbytes if buffer.storage == number else 0 for number, buffer in enumerate(plan.buffers)]
    places = []
    for buffer in plan.buffers:
        root = plan.buffers[buffer.storage]
        is_inside = root.kind is BufferKind.INTERMEDIATE
        places.append(f"memory[{arena}] + {root.offset}" if is_inside else f"memory[{buffer.storage}]")
    constants = dict(network.constants)
    given = [*constants, *plan.inputs]
    arrays = [*constants.values(), *(inputs[plan.buffers[number].name] for number in plan.inputs)]
    wanted = [plan.buffers[number].storage for number in plan.outputs]
    calls = [(call.kernel, [places[number] for number in call.buffers]) for call in plan.calls]
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    found = _run(network.kernels, [*sizes, plan.arena_bytes], given, wanted, calls, data, folder, threads)
    return _split(found, [(plan.buffers[number].shape, plan.buffers[number].dtype) for number in plan.outputs])


def _run(
    kernels: Sequence[KernelArtifact],
    sizes: Sequence[int],
    given: Sequence[int],
    wanted: Sequence[int],
    calls: Sequence[tuple[str, Sequence[str]]],
    data: bytes,
    folder: Path,
    threads: int,
) -> bytes:
    workspaces = {kernel.name: kernel.workspace_bytes for kernel in kernels}
    lines = []
    for name, buffers in calls:
        workspace = f"fenced({workspaces[name]})" if workspaces[name] else "0"
        lines.append(f"  {{ void *args[] = {{ {', '.join((*buffers, workspace))} }};")
        lines.append(f'    if ({name}(args, {threads})) {{ fprintf(stderr, "{name} failed\\n"); return 2; }} }}')
    program = _PROGRAM.format(
        fence=_FENCE,
        alignment=ALIGNMENT,
        count=len(sizes),
        sizes=", ".join(map(str, sizes)),
        given="".join(f"{number}, " for number in given),
        wanted="".join(f"{number}, " for number in wanted),
        declarations="\n".join(f"int32_t {kernel.name}(void **, int32_t);" for kernel in kernels),
        calls="\n".join(lines),
    )
    (folder / "main.c").write_text(program, encoding="utf-8")
    (folder / "in").write_bytes(data)
    objects = []
    for number, kernel in enumerate(kernels):
        objects.append(folder / f"{number}.o")
        objects[-1].write_bytes(kernel.object_code)
    binary, source = str(folder / "main"), str(folder / "main.c")
    compile_ = [_COMPILER, "-O1", "-static", "-w", "-o", binary, source, *map(str, objects), "-lgomp", "-lm"]
    for command in (compile_, [_EMULATOR, "-cpu", "max", binary, str(folder / "in"), str(folder / "out")]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        assert done.returncode == 0, f"{command[0]} ended with {done.returncode}: {done.stderr[:2000]}"
    return (folder / "out").read_bytes()


def _split(data: bytes, specs: Sequence[tuple[tuple[int, ...], str]]) -> list[Array]:
    arrays, start = [], 0
    for shape, dtype in specs:
        kind = number_type(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(data, kind, count, start).reshape(shape))
        start += count * np.dtype(kind).itemsize
    assert start == len(data)
    return arrays
