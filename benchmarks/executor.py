"""Overhead of the graph executor per kernel of a network.

    python -m benchmarks.executor [--only REGEX] [--seconds S] [--out FILE] [--nodes N]

The graph is a chain of `--nodes` calls of a kernel that adds 1 to one number, so a run consists of little more than
what the executor does between kernels. Lines: time of a run divided by its nodes; of setting the input; of fetching the
output. One thread; the calls are those that every network makes.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.graph_json import EntrySpec, GraphJson, Node, Source
from benchmarks.harness import Figure, Run, parse, seconds_of
from retune.compiler import te
from retune.compiler.driver.build import build
from retune.compiler.tvm.graph_executor import GraphModule, cpu, create

CASE = "chain"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the lines."""
    run = parse(
        __doc__,
        argv,
        seconds=2,
        seconds_help="timing for each figure",
        options={"nodes": (200, "calls in the graph")},
    )
    if run.wants(CASE):
        run.write_all(figures(run))


def figures(run: Run) -> Iterator[Figure]:
    """The three figures."""
    nodes = run.options["nodes"]
    module = chain(nodes)
    one = np.ones(1, np.float32)
    module.run(x=one)
    if module.get_output(0)[0] != nodes + 1:
        raise AssertionError("the chain computes something else")
    details = {"nodes": nodes}
    out = np.empty(1, np.float32)
    timed = {
        "run, per node": seconds_of(module.module.run, seconds=run.seconds) / nodes,
        "set_input": seconds_of(lambda: module.set_input("x", one), seconds=run.seconds),
        "get_output": seconds_of(lambda: module.get_output(0, out), seconds=run.seconds),
    }
    for metric, seconds in timed.items():
        yield Figure(CASE, "retune", 1, metric, seconds * 1e6, "µs", details=details)


def chain(nodes: int) -> GraphModule:
    """A graph of so many calls that each add 1, in two alternating memories."""
    x = te.placeholder((1,), name="x")
    add_one = build([x, te.compute((1,), lambda i: x[i] + 1.0, name="y")], name="add_one")
    calls = (Node(f"n{number}", "add_one", (Source(number),)) for number in range(nodes))
    storage = (0, *(1 + number % 2 for number in range(nodes)))
    entries = tuple(EntrySpec((1,), "float32", number) for number in storage)
    graph = GraphJson((Node("x"), *calls), (0,), (Source(nodes),), entries)
    return create(graph.dumps(), {"add_one": add_one}, cpu())


if __name__ == "__main__":
    main()
