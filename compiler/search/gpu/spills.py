"""Register spills of a GPU program as NVIDIA's assembler reports them; nothing is run.

A query takes about half a second, so it is for the few programs about to be measured, not for the thousands that are
scored.
"""

from collections.abc import Sequence

from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.codegen.nvidia.ptxas import assemble_roomy, assembles
from retune.compiler.core.errors import RetuneError
from retune.compiler.core.gpu_facts import USUAL_ARCH
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask


def spilled_bytes(task: SearchTask, steps: Sequence[Step]) -> int:
    """Bytes that one thread of every kernel spills; 0 without an assembler, or if the program does not build."""
    arch = task.target.arch or USUAL_ARCH
    if not assembles(arch):
        return 0
    try:
        text = ptx(lower_for_gpu(replay(task.dag, steps), "kernel", task.hardware), task.target)
        return assemble_roomy(text, arch).spilled_bytes
    except RetuneError:
        return 0
