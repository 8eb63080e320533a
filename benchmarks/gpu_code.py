"""Upper bounds on the speed of the first GPU programs of a search, from their machine code; nothing is measured.

    python -m benchmarks.gpu_code [--only REGEX] [--archs sm_90,sm_80] [--modes fp32] [--programs N] [--out FILE]

Takes the programs that the search would measure first (ranked by the analytical cost model, with a fixed seed),
assembles them with `ptxas` and disassembles them with `nvdisasm`. `value` is the largest fraction of peak arithmetic
that the hottest loop can reach. It follows from the longest of the cycles to issue its instructions, of the float32
pipe or the tensor cores, of shared memory and of the L2 cache; latency is ignored. `whole` includes the code around
that loop. `limits` gives the bound of each resource alone. `guess` is the fraction that the analytical cost model
predicts, latency included, and `bank_words` the most words that one load takes from a bank of shared memory, by the
same model. Without `ptxas` or `nvdisasm` the benchmark says so and ends.
"""

import sys
from collections.abc import Iterator, Sequence
from math import nan

import numpy as np

from benchmarks.gpu_bounds import CodeBound, bound_of
from benchmarks.gpu_cases import CASES, MODES, GpuCase
from benchmarks.harness import Figure, parse
from benchmarks.nvdisasm import disassemble, disassembler
from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.codegen.nvidia.ptxas import KernelResources, assemble_roomy, assembler, assembles
from retune.compiler.core.errors import RetuneError
from retune.compiler.core.gpu_facts import GpuFacts, facts_of
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.ir.kernel import Kernel
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.measure.record import TaskProgram
from retune.compiler.model.boosted_trees import XGBModel
from retune.compiler.model.features import FEATURE_NAMES
from retune.compiler.schedule.state import SHARED_SUFFIX, replay
from retune.compiler.schedule.statements import statement_nests
from retune.compiler.schedule.steps import Step, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.search.program_features import features_of_steps, prior_scores, scored_hardware

_ASKED = 16
"""Programs of the first batch, of which the first are looked at."""

NOTE = "a bound from the machine code, nothing was measured"


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for every kernel of every program. Raises: SystemExit in words where a tool is missing."""
    texts = {
        "archs": ("LIST", "architectures, separated by commas; sm_90,sm_80"),
        "modes": ("LIST", f"of {', '.join(MODES)}, separated by commas; fp32"),
    }
    options = {"programs": (4, "programs of each operator")}
    run = parse(__doc__, argv, seconds=1.0, seconds_help="not used", options=options, texts=texts)
    if assembler() is None or disassembler() is None:
        missing = "ptxas" if assembler() is None else "nvdisasm"
        sys.exit(f"nothing can be said of machine code: there is no {missing} on the path")
    modes = (run.texts["modes"] or "fp32").split(",")
    for arch in (run.texts["archs"] or "sm_90,sm_80").split(","):
        if not assembles(arch):
            sys.exit(f"ptxas does not know {arch}")
        for name, case in CASES.items():
            for mode in (mode for mode in case.modes if mode in modes and run.wants(f"{name}_{mode}")):
                run.write_all(figures(name, case, mode, arch, run.options["programs"]))


def task_of(name: str, case: GpuCase, mode: str, arch: str) -> SearchTask:
    """What is tuned for a case on an architecture."""
    target = Target("cuda", arch=arch, math="tf32" if mode == "tf32" else "")
    return SearchTask(f"{name}_{mode}", case.graph(mode), target, hardware_of(target, 1))


def candidates_of(task: SearchTask) -> tuple[TaskProgram, ...]:
    """What is measured first."""
    return SketchPolicy(task, XGBModel(), seed=0).ask(_ASKED, 0)


def figures(name: str, case: GpuCase, mode: str, arch: str, programs: int) -> Iterator[Figure]:
    """The lines of the first programs of a case."""
    task = task_of(name, case, mode, arch)
    for place, candidate in enumerate(candidates_of(task)[:programs]):
        guess, words = guessed(task, load_steps(candidate.steps))
        details: dict[str, object] = {"arch": arch, "program": place, "note": NOTE, "bank_words": words}
        try:
            found = list(looked_at(task, load_steps(candidate.steps), arch))
        except RetuneError as failure:
            details["failure"] = f"{type(failure).__name__}: {failure}"
            yield Figure(f"{name}_{mode}", "retune", 1, "bound", nan, "", details=details)
            continue
        multiplies = any(kind in bound.mix for _, _, bound in found for kind in ("hmma", "hgmma"))
        details["guess"] = round(guess * _float32_in(facts_of(arch), mode) if multiplies else guess, 4)
        for kernel, resources, bound in found:
            lines = {**details, **_details(kernel, resources, bound, arch)}
            yield Figure(
                f"{name}_{mode}", "retune", 1, "bound", bound.iteration.share, "share of the peak", details=lines
            )


def _float32_in(facts: GpuFacts, mode: str) -> float:
    """The peak of float32 as a share of that of tensor cores."""
    tensor = facts.tensor / 2.0 if mode == "tf32" else max(facts.tensor, facts.group_tensor)
    return facts.lanes / tensor


def guessed(task: SearchTask, steps: Sequence[Step]) -> tuple[float, float]:
    """What an analytical model say of a program: a share of the peak of float32, and words of a bank for one load of a
    sum.
    """
    features = features_of_steps(task, steps)
    guess = prior_scores(features[None], task.flop_count, scored_hardware(task))
    words = np.exp2(features[:, FEATURE_NAMES.index("gpu_bank_conflicts")]) - 1.0
    sums = [
        not name.endswith(SHARED_SUFFIX) for name in (nest.op.name for nest in statement_nests(replay(task.dag, steps)))
    ]
    return float(guess[0]), round(float(words[sums].max(initial=0.0)), 2)


def looked_at(
    task: SearchTask, steps: Sequence[Step], arch: str
) -> Iterator[tuple[Kernel, KernelResources, CodeBound]]:
    """Every kernel of a program, what the assembler says that it takes, and what its machine code allows.

    Raises: LoweringError where a tool is missing or refuses the code.
    """
    function = lower_for_gpu(replay(task.dag, steps), "kernel", task.hardware)
    assembled = assemble_roomy(ptx(function, task.target), arch)
    codes = {code.name: code for code in disassemble(assembled.code)}
    resources = {one.name: one for one in assembled.kernels}
    for kernel in function.kernels:
        yield kernel, resources[kernel.name], bound_of(codes[kernel.name], kernel, facts_of(arch))


def _details(kernel: Kernel, resources: KernelResources, bound: CodeBound, arch: str) -> dict[str, object]:
    shared = kernel.bytes_of("shared")
    return {
        "kernel": kernel.name,
        "grid": kernel.grid,
        "block": kernel.block,
        "sums": kernel.registers,
        "registers": resources.registers,
        "spilled": resources.spilled_bytes,
        "shared": shared,
        "resident": int(facts_of(arch).resident(kernel.threads, resources.registers, shared)),
        "whole": round(bound.whole.share, 4) if bound.whole else None,
        "limits": bound.iteration.limits(),
        "loop": bound.mix,
        "around": bound.around,
    }


if __name__ == "__main__":
    main()
