"""Compiles an optimized graph into a `CompiledNetwork`, with the best known program of each task.

Every distinct kernel is built once. A task without a program that can be built gets the default schedule, and the
network's `coverage` says so. Of several ways to compute a layer the fastest recorded is used. A kernel that
cannot be compiled for a GPU is compiled for the CPU, within the same network.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from retune.compiler.codegen.backend import backend_of, default_steps_of
from retune.compiler.codegen.build import build_kernel
from retune.compiler.core import config
from retune.compiler.core.errors import DefinitionError, LoweringError, ScheduleError
from retune.compiler.core.target import Target
from retune.compiler.driver.dispatch import DispatchContext, is_enabled, is_silent, suppress_dispatch_warnings
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.partition.partition import Alternative, Partition, partition, with_alternatives
from retune.compiler.graph.partition.to_plan import to_plan
from retune.compiler.graph.partition.winograd import winograd_for
from retune.compiler.measure.record import DEFAULT_SCHEDULE, FITTED_CANDIDATE, UNTESTED_CANDIDATE, TaskProgram
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.kernel_row import CoverageReport, KernelRow, ProgramOrigin
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.steps import Step, dump_steps, load_steps, steps_of
from retune.compiler.schedule.task import SearchTask

_log = logging.getLogger(__name__)

ORIGINS = {UNTESTED_CANDIDATE: ProgramOrigin.UNTESTED, FITTED_CANDIDATE: ProgramOrigin.TRANSFER}
"""Where programs come from by their `mutation`; all others are tuned, or the default schedule."""

BuildError = DefinitionError | ScheduleError | LoweringError
"""Why a program cannot be built."""

BUILD_ERRORS = (DefinitionError, ScheduleError, LoweringError)
"""The classes of `BuildError`, for `except`."""


@dataclass(frozen=True, slots=True)
class ChosenProgram:
    """The program of one kernel of a network, to be built under the name of its task, and where it comes from: a
    record, or what `note` says. `on_cpu` marks a kernel with CPU code in a network for a GPU.
    """

    task: SearchTask
    steps: tuple[Step, ...]
    record_id: str = ""
    origin: ProgramOrigin = ProgramOrigin.DEFAULT
    note: str = ""
    on_cpu: bool = False

    @property
    def label(self) -> str:
        """Where the program comes from, in words."""
        return f"record {self.record_id}" if self.record_id else "the untested candidate"

    def build(self) -> KernelArtifact:
        """Its kernel. Raises: ScheduleError or LoweringError when it cannot be built."""
        return build_kernel(self.task, self.steps, self.task.name)


BuildKernels = Callable[[Sequence[ChosenProgram]], Sequence[KernelArtifact | BuildError]]
"""Builds many kernels, maybe in parallel: each kernel, in order, or the error of its build."""

_MOST_OTHERS = 5
"""Most of the other records of a kernel that are tried when the best cannot be built."""


def build_in_process(programs: Sequence[ChosenProgram]) -> list[KernelArtifact | BuildError]:
    """Build one kernel after the other, here."""
    return [_try_build(program) for program in programs]


def _try_build(program: ChosenProgram) -> KernelArtifact | BuildError:
    try:
        return program.build()
    except BUILD_ERRORS as error:
        return error


def reuse_kernels(
    built: Mapping[tuple[str, str], KernelArtifact], build: BuildKernels = build_in_process
) -> BuildKernels:
    """A function that builds kernels as `build` does, but takes those that it finds in `built`, which maps (workload
    key, text of the steps) to a kernel.
    """

    def find_built(program: ChosenProgram) -> KernelArtifact | None:
        kernel = built.get((program.task.workload_key, dump_steps(program.steps)))
        # The name is the symbol in the object code, and the target decides its instructions: both must be the same.
        fits = kernel is not None and (kernel.name, kernel.target) == (program.task.name, str(program.task.target))
        return kernel if fits else None

    def build_missing(programs: Sequence[ChosenProgram]) -> list[KernelArtifact | BuildError]:
        kernels = [find_built(program) for program in programs]
        others = iter(build([program for program, kernel in zip(programs, kernels, strict=True) if kernel is None]))
        return [next(others) if kernel is None else kernel for kernel in kernels]

    return build_missing


def compile_graph(
    graph: Graph,
    target: Target,
    best: Mapping[str, TaskProgram] | None = None,
    *,
    threads: int = 1,
    cut: Partition | None = None,
    build: BuildKernels = build_in_process,
    release: bool = False,
) -> CompiledNetwork:
    """Compile `graph`, which has been through the graph passes.

    `best` maps a workload key to the program to use; where it has none, a dispatch
    context that was entered is asked (`with ApplyHistoryBest(log):`), unless the pass context says not to. Where
    records are used, one warning names the kernels worth tuning that have none; another one names those of a network
    for a GPU that run on the CPU. `threads` is the number of threads that the network is meant to run on. `cut`
    is the partition, when the caller has it already; its alternatives may be used. A record of `best` that cannot be
    built makes room for the first of its substitutes that can. With `release` the graph loses its constants, so that
    each is in memory once.
    Raises: DefinitionError or LoweringError when even a default schedule cannot be built.
    """
    cut = cut or partition(graph, target, hardware_of(target, threads), winograd_for(target))
    best = best or {}
    # Before programs are chosen: a task that lost to an alternative needs none.
    rewritten, cut = with_alternatives(graph, cut, fastest_alternatives(cut, best))
    if release and rewritten is not graph:
        graph.constants.clear()
    with suppress_dispatch_warnings():
        choices = [
            _choose(task, best.get(task.workload_key), tunable)
            for task, tunable in zip(cut.tasks, cut.tunable, strict=True)
        ]
    choices, artifacts = _build(choices, build, threads, best)
    plan, constants = to_plan(rewritten, cut, {artifact.name: artifact for artifact in artifacts}, release=release)
    coverage = tuple(
        KernelRow(
            task.name,
            task.workload_key,
            weight,
            task.flop_count,
            tunable=tunable,
            origin=choice.origin,
            record_id=choice.record_id,
            note=choice.note,
        )
        for task, weight, tunable, choice in zip(cut.tasks, cut.weights, cut.tunable, choices, strict=True)
    )
    facts = made_for(target, threads, by_cpu=any(choice.on_cpu for choice in choices))
    metadata = {"network": graph.name, **facts}
    network = CompiledNetwork(plan, tuple(artifacts), constants, coverage, metadata)
    network.verify()
    if (best or is_enabled()) and not is_silent() and (fallen := CoverageReport.of(coverage).fallback_text()):
        _log.warning("%s: %s", graph.name, fallen)
    if moved := [choice for choice in choices if choice.on_cpu]:
        names = ", ".join(choice.task.name for choice in moved)
        _log.warning("%s: kernels without code for GPUs, which run on the CPU: %s", graph.name, names)
    return network


def fastest_alternatives(cut: Partition, best: Mapping[str, TaskProgram]) -> tuple[Alternative, ...]:
    """Those alternatives that are known to be faster than the direct task and all others: by the programs in `best`, or
    else by what the dispatch context knows. A program that does not fit its task makes no alternative fast. Where no
    way to compute a layer is known, the way that is predicted to be much the fastest.
    """

    def seconds(task: SearchTask) -> float:
        known = best.get(task.workload_key)
        if known is not None:
            return known.seconds if _fits(task, known) else math.inf
        if not is_enabled():
            return math.inf
        return DispatchContext.current.expected_seconds(task.target, task.workload_key)

    alternatives = []
    for task in cut.tasks:
        others = cut.alternatives_of(task)
        if not others:
            continue
        first = min(others, key=lambda other: seconds(other.task))
        if seconds(first.task) < seconds(task):
            alternatives.append(first)
        elif math.isinf(seconds(task)) and (likely := cut.predicted_alternative(task)) is not None:
            # A program that failed has a record of infinite time: what is known goes before what is predicted.
            is_known = {task.workload_key, likely.task.workload_key} & best.keys() or _is_in_context(task)
            alternatives += [] if is_known else [likely]
    return tuple(alternatives)


def _is_in_context(task: SearchTask) -> bool:
    """Whether the dispatch context has a program for a task; its time may be unknown."""
    with suppress_dispatch_warnings():
        context = DispatchContext.current if is_enabled() else None
        return context is not None and context.query(task.target, task.workload_key, True, task.dag) is not None


def _fits(task: SearchTask, known: TaskProgram) -> bool:
    try:
        replay(task.dag, load_steps(known.steps))
    except BUILD_ERRORS:
        return False
    return True


def _choose(task: SearchTask, best: TaskProgram | None, tunable: bool) -> ChosenProgram:
    """The program `best`, without it that of the dispatch context; the default schedule where there is neither, or the
    steps of `best` cannot be read. By default a context warns only of `tunable` tasks that it has no record of.
    """
    if best is None:
        if not is_enabled():
            return _default(task)
        state = DispatchContext.current.query(task.target, task.workload_key, tunable, task.dag)
        if state is None:
            return _default(task)
        return ChosenProgram(task, steps_of(state), origin=ProgramOrigin.CONTEXT)
    if best.mutation == DEFAULT_SCHEDULE and not best.record_id:
        return ChosenProgram(task, default_steps_of(task), note="a run confirmed it")
    try:
        steps = load_steps(best.steps)
    except BUILD_ERRORS as error:
        return _default(task, f"record {best.record_id} cannot be read: {error}")
    otherwise = ProgramOrigin.RECORD if best.record_id else ProgramOrigin.UNTESTED
    return ChosenProgram(task, steps, best.record_id, ORIGINS.get(best.mutation, otherwise))


def _default(task: SearchTask, note: str = "") -> ChosenProgram:
    if note:
        _log.info("%s: %s; using the default schedule", task.name, note)
    return ChosenProgram(task, default_steps_of(task), note=note)


def _on_cpu(choice: ChosenProgram, threads: int, why: Exception) -> ChosenProgram:
    """The same task in its default schedule on the CPU of this machine, since a GPU cannot run it."""
    target = Target.host()
    layout = LayoutRewriteOption.get_target_default(target, in_relay_integration=True)
    task = replace(choice.task, target=target, hardware=hardware_of(target, threads), layout=layout)
    _log.info("%s runs on the CPU: %s", task.name, why)
    return ChosenProgram(task, default_steps_of(task), note=f"on the CPU: {why}", on_cpu=True)


def _build(
    choices: list[ChosenProgram], build: BuildKernels, threads: int, best: Mapping[str, TaskProgram]
) -> tuple[list[ChosenProgram], list[KernelArtifact]]:
    """All kernels, with something else in place of those that cannot be built."""
    final, artifacts = [], []
    # All at once, since a builder may work in parallel.
    for choice, built in zip(choices, build(choices), strict=True):
        used, artifact = _build_or_else(choice, built, build, threads, _next_best(choice, best))
        final.append(used)
        artifacts.append(artifact)
    return final, artifacts


def _next_best(choice: ChosenProgram, best: Mapping[str, TaskProgram]) -> Iterator[ChosenProgram]:
    """What may take the place of a record that cannot be built: a few programs, each of which takes a build."""
    programs = best[choice.task.workload_key].substitutes if choice.record_id else ()
    known = (_choose(choice.task, program, True) for program in programs if program.record_id != choice.record_id)
    return islice((other for other in known if other.origin is not ProgramOrigin.DEFAULT), _MOST_OTHERS)


def _build_or_else(
    choice: ChosenProgram,
    built: KernelArtifact | BuildError,
    build: BuildKernels,
    threads: int,
    others: Iterator[ChosenProgram],
) -> tuple[ChosenProgram, KernelArtifact]:
    """The program, which is `built` or failed, else the first of the others, else the default schedule, else on a GPU
    that of the CPU.
    """
    while not isinstance(built, KernelArtifact):
        task = choice.task
        if choice.origin is not ProgramOrigin.DEFAULT:
            why = f"{choice.label} cannot be built: {built}"
            known = next(others, None)
            choice = _default(task, why) if known is None else replace(known, note=why)
        # Ends: each step leads to a plainer program, and the error of the CPU's default schedule is raised.
        elif task.target.kind != Target.host().kind:
            choice = _on_cpu(choice, threads, built)
        else:
            raise built
        (built,) = build([choice])
    return choice, built


def made_for(target: Target, threads: int, *, by_cpu: bool = False) -> dict[str, object]:
    """Facts that a file of compiled code stores: the target, the CPU features that the code needs, threads, versions.
    `by_cpu` says that some code of a file for a GPU is for the CPU of this machine. Raises: TargetError.
    """
    triple, cpu, features = backend_of(target).describe(target)
    if by_cpu:
        features = backend_of(Target.host()).describe(Target.host())[2]
    return {
        "target": str(target),
        "triple": triple,
        "cpu": cpu,
        "needs": sorted(word[1:] for word in features.split(",") if word.startswith("+")),
        "threads": threads,
        "versions": {"retune": config.engine_version()}
        | {name: config.package_version(name) for name in ("llvmlite", "numpy")},
    }
