"""Speed of the virtual machine next to the graph executor, and the cost of a loop.

    python -m benchmarks.vm [--only REGEX] [--threads N] [--seconds S] [--out FILE] [--steps N]

Cases: `mlp`, whose shapes are all known when it is compiled; `gpt2_greedy`, a block of GPT-2 in a loop that appends a
word per iteration; `loop`, whose body is three operations on 64 numbers, for the cost of an iteration. Lines of `mlp`:
time of a run in the machine, in the graph executor with the same kernels (the search's top unmeasured candidates), and
their ratio; of the loops the time of a run, its ratio to the time in the loop's regions alone, seconds of the first and
the second call, and how many kernels were built for them. Changing shapes: `benchmarks.dynamic`.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import zoo
from benchmarks.harness import Figure, Run, interleaved, parse
from retune.compiler import vm
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.partition.partition import partition
from retune.compiler.graph.partition.winograd import winograd_for
from retune.compiler.graph.pipeline import optimize
from retune.compiler.measure.record import TaskProgram
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.device import cpu
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.tune.winners import untested_candidates
from retune.compiler.vm.subgraph import TunedPrograms, known_programs

_PASS_SECONDS = 0.05


def main(argv: Sequence[str] | None = None) -> None:
    """Print the lines."""
    run = parse(
        __doc__,
        argv,
        seconds=2,
        seconds_help="timing for each case",
        threads=(1, 2),
        options={"steps": (8, "words that are appended")},
    )
    for threads in run.threads:
        if run.wants("mlp"):
            run.write_all(known_shapes(run, threads))
        if run.wants("loop"):
            run.write_all(iterations(run, threads))
        if run.wants("gpt2_greedy"):
            run.write_all(greedy(run, threads))


def known_shapes(run: Run, threads: int) -> Iterator[Figure]:
    """A network whose bytecode calls one kernel after the other, and the executor with the same kernels."""
    model = zoo.build("mlp")
    best = _guesses(model, threads)
    machine = vm.VirtualMachine(vm.compile(model, threads=threads, best=best), cpu(), threads=threads)
    executor = _executor(model, best, threads)
    inputs = {"input": np.random.default_rng(0).standard_normal((1, 784), np.float32)}
    machine.set_input("main", **inputs)
    executor.run(**inputs)
    expected = executor.get_output(0)
    error = float(np.max(np.abs(machine.invoke("main") - expected)) / np.max(np.abs(expected)))
    contenders: dict[str, Callable[[], object]] = {"machine": lambda: machine.invoke("main"), "executor": executor.run}
    passes = max(3, round(run.seconds / len(contenders) / _PASS_SECONDS))
    seconds = interleaved(contenders, passes=passes, pass_seconds=_PASS_SECONDS)
    for name, each in seconds.items():
        yield Figure("mlp", "retune", threads, name, each * 1e3, "ms", error=error)
    yield Figure("mlp", "retune", threads, "machine / executor", seconds["machine"] / seconds["executor"], "")


def greedy(run: Run, threads: int) -> Iterator[Figure]:
    """A loop: every iteration has its own length."""
    steps = run.options["steps"]
    machine = vm.VirtualMachine(vm.compile(zoo.build("gpt2_greedy"), threads=threads), cpu(), threads=threads)
    inputs: dict[str, Any] = {"input_ids": np.arange(8, dtype=np.int64)[None], "steps": np.asarray(steps)}
    details = {"steps": steps}
    yield from _calls("gpt2_greedy", threads, machine, inputs, details)
    shares = []
    for _ in range(5):
        calls = machine.profile(**inputs).calls
        whole = sum(float(call["Duration (us)"]) for call in calls)
        control = sum(float(call["Duration (us)"]) for call in calls if str(call["Name"]).startswith("loop of"))
        shares.append(whole / (whole - control))
    seconds = interleaved({"machine": lambda: machine.invoke("main")}, passes=3, pass_seconds=run.seconds / 3)
    yield Figure("gpt2_greedy", "retune", threads, "machine", seconds["machine"] * 1e3, "ms", details=details)
    yield Figure("gpt2_greedy", "retune", threads, "machine / regions", statistics.median(shares), "", details=details)


def iterations(run: Run, threads: int) -> Iterator[Figure]:
    """A loop with next to nothing in it."""
    machine = vm.VirtualMachine(vm.compile(_loop(), threads=threads), cpu(), threads=threads)
    x = np.ones((1, 64), np.float32)
    most = 64

    def called(count: int) -> Callable[[], object]:
        arguments = np.asarray(count), x
        return lambda: machine.run(*arguments)

    seconds = interleaved(
        {"none": called(0), "all": called(most)}, passes=max(3, round(run.seconds / 2 / _PASS_SECONDS))
    )
    yield Figure("loop", "retune", threads, "call without an iteration", seconds["none"] * 1e6, "µs")
    yield Figure("loop", "retune", threads, "turn", (seconds["all"] - seconds["none"]) / most * 1e6, "µs")


def _loop() -> onnx.ModelProto:
    make, info, kind = helper.make_node, helper.make_tensor_value_info, TensorProto
    nodes = [make("Add", ["a", "w"], ["b"]), make("Tanh", ["b"], ["c"]), make("Mul", ["c", "w"], ["d"])]
    given = [info("turn", kind.INT64, []), info("go", kind.BOOL, []), info("a", kind.FLOAT, [1, 64])]
    results = [info("goes_on", kind.BOOL, []), info("d", kind.FLOAT, [1, 64])]
    body = helper.make_graph([make("Identity", ["go"], ["goes_on"]), *nodes], "turn", given, results)
    inputs = [info("count", kind.INT64, []), info("x", kind.FLOAT, [1, 64])]
    weights = [numpy_helper.from_array(np.linspace(0, 1, 64, dtype=np.float32), "w")]
    loop = make("Loop", ["count", "", "x"], ["y"], body=body)
    graph = helper.make_graph([loop], "loop", inputs, [info("y", kind.FLOAT, [1, 64])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _calls(
    case: str, threads: int, machine: Any, inputs: Mapping[str, Array], details: Mapping[str, object]
) -> Iterator[Figure]:
    """The first and the second call with these inputs."""
    built = sum(each.built for each in machine.specializations())
    for metric in ("first call", "second call"):
        start = time.perf_counter()
        machine.run(**inputs)
        seconds = time.perf_counter() - start
        found = machine.specializations()
        more = {"kernels_built": sum(each.built for each in found) - built, "specializations": len(found)}
        built += more["kernels_built"]
        yield Figure(case, "retune", threads, metric, seconds, "s", details={**details, **more})


def _executor(model: Any, known: Mapping[str, TaskProgram], threads: int) -> GraphExecutor:
    """The network with programs that are known, or fitted to its shapes, as the machine takes them."""
    target = Target.host()
    graph = optimize(load_model(model))
    cut = partition(graph, target, hardware_of(target, threads), winograd_for(target))
    best = TunedPrograms(known_programs(target, known)).programs_for(cut)
    return GraphExecutor(compile_graph(graph, target, best, threads=threads, cut=cut), threads)


def _guesses(model: Any, threads: int) -> dict[str, TaskProgram]:
    """What the search would try first for every kernel of a network that is worth tuning."""
    target = Target.host()
    tasks, _ = partition(optimize(load_model(model)), target, hardware_of(target, threads)).worth_tuning()
    return {task.workload_key: untested_candidates(task)[0] for task in tasks}


if __name__ == "__main__":
    main()
