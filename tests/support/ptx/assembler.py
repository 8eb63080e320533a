"""A matmul for the assembler ptxas, and what that says of a kernel."""

import shutil
import subprocess
from pathlib import Path

import numpy as np

from retune.compiler.core.target import Target
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.spaces import build_spaces
from tests.support.workloads import GPU, matmul


def tiled(points: int, target: str = "cuda -arch=sm_80") -> tuple[SearchTask, tuple[Step, ...]]:
    """A matmul whose threads hold `points` × `points` sums each."""
    dag = matmul(256, 256, 64)
    task = SearchTask("m", dag, Target(target), GPU)
    (space,) = build_spaces(task, SearchOptions())
    row = np.ones((1, space.layout.width), dtype=np.int64)
    row[:, space.layout.placement] = 0
    parts = [256 // (8 * points), 1, 8, points, 1]
    for split, lengths in zip(space.layout.splits, (parts, parts, [16, 4, 1]), strict=True):
        row[0, split.columns] = lengths
    return task, space.steps(row[0])


ASSEMBLER = shutil.which("ptxas")


def assembled(text: str, folder: Path, arch: str) -> str:
    """What the assembler says of the registers and the memory of the kernels; "" without one."""
    if ASSEMBLER is None:
        return ""
    source = folder / "kernel.ptx"
    source.write_text(text)
    run = subprocess.run(
        [ASSEMBLER, "-v", f"-arch={arch}", str(source), "-o", str(folder / "kernel.cubin")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, f"{run.stderr}\n{text}"
    return run.stderr
