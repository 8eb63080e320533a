"""How a schedule becomes kernels, as one text."""

from retune.compiler.lower.gpu.build_kernels import KernelBuilder, build_kernels
from retune.compiler.lower.gpu.pipeline import PASSES, lower_for_gpu
from retune.compiler.schedule.state import State
from tests.unit.search.workloads import GPU


def texts_of(state: State, builder: type[KernelBuilder] | None = None) -> str:
    """The state, its loops as they are built, those after every pass that changes them, and the kernels."""
    texts = {"state": str(state)}
    functions = list(build_kernels(state, "k", builder))
    texts["build-kernels"] = "\n".join(map(str, functions))
    for number, loop_pass in enumerate(PASSES):
        functions = [loop_pass.apply(function) for function in functions]
        text = "\n".join(map(str, functions))
        if text != list(texts.values())[-1]:
            texts[f"{number} {loop_pass.name}"] = text
    texts["kernels"] = str(lower_for_gpu(state, "k", GPU, check=True))
    return "\n".join(f"== {after}\n{text}\n" for after, text in texts.items())
