"""In: a compiled network, or nothing. Out: its time, or the networks there are. Always: nothing is tuned."""

from pathlib import Path
from typing import Annotated

import typer

from compiler import config
from compiler.executor.graph_executor import GraphExecutor
from compiler.executor.network import CompiledNetwork
from compiler.frontend import zoo
from flows.commands.output import Json, Output, Quiet


def networks(as_json: Json = False, quiet: Quiet = False) -> None:
    """List the networks of the zoo."""
    output = Output(as_json, quiet)
    for name in zoo.NAMES:
        output.say(name, name=name)


def run(
    artifact: Annotated[Path, typer.Argument(help="A compiled network, runs/RUN/NAME.retune. Run only your own.")],
    threads: Annotated[int | None, typer.Option(help="Threads to run on. Default: all cores.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Time a compiled network on inputs of zeros."""
    output = Output(as_json, quiet)
    chosen = config.thread_count(config.usable_cores()) if threads is None else threads
    executor = GraphExecutor(CompiledNetwork.load(artifact), chosen)
    shapes, dtypes = executor.get_input_info()
    found = executor.benchmark(repeat=10, number=1, min_repeat_ms=50.0)
    inputs = {name: {"dtype": dtypes[name], "shape": list(shape)} for name, shape in shapes.items()}
    lines = [f"input {name}: {one['dtype']}{one['shape']}" for name, one in inputs.items()]
    output.say("\n".join([*lines, str(found)]), inputs=inputs, threads=chosen, seconds=list(found.results))
