"""How a schedule becomes kernels, as the sections of a case."""

from retune.compiler.core.target import HardwareParams
from retune.compiler.lower.gpu.build_kernels import KernelBuilder, build_kernels
from retune.compiler.lower.gpu.pipeline import PASSES, lower_for_gpu
from retune.compiler.lower.passes import pass_name
from retune.compiler.schedule.state import State
from tests.support.workloads import GPU


def sections_of(
    state: State, builder: type[KernelBuilder] | None = None, hardware: HardwareParams = GPU
) -> dict[str, str]:
    """The state, its loops as they are built, those after every pass that changes them, and the kernels."""
    texts = {"state": str(state)}
    functions = list(build_kernels(state, "k", builder))
    texts["build-kernels"] = "\n".join(map(str, functions))
    for number, loop_pass in enumerate(PASSES):
        functions = [loop_pass(function) for function in functions]
        text = "\n".join(map(str, functions))
        if text != list(texts.values())[-1]:
            texts[f"{number} {pass_name(loop_pass)}"] = text
    texts["kernels"] = str(lower_for_gpu(state, "k", hardware, check=True))
    return texts
