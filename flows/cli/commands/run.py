"""The command `retune run`: times a compiled network."""

import time
from pathlib import Path
from typing import Annotated

import typer

from retune.compiler.runtime.cuda.driver import gpus
from retune.compiler.runtime.device import device
from retune.compiler.runtime.executor.executors import executor_of
from retune.compiler.runtime.executor.library import Library
from retune.compiler.runtime.readable import busy_warning, count
from retune.compiler.runtime.threads.contention import ContentionMeter
from retune.compiler.runtime.timing import TimeEvaluator
from retune.flows.cli.commands.output import Json, Output, Quiet


def run(
    artifact: Annotated[Path, typer.Argument(help="A compiled network, .retune or .so. Run only your own.")],
    threads: Annotated[int | None, typer.Option(help="Threads to run on. Default: as it was compiled.")] = None,
    on: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda, or another GPU: cuda:1. Default: as it was compiled.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Time a compiled network on inputs of zeros. For a GPU that includes the copies to it and back."""
    output = Output(as_json, quiet)
    library = Library.load(artifact)
    chosen = library.threads if threads is None else threads
    executor = executor_of(library.network, chosen, None if on is None else [device(on)], library.kernels)
    where = ", ".join(gpus()[device.device_id].identity for device in executor.devices[1:])
    shapes, dtypes = executor.get_input_info()
    executor.run()  # starts the threads, so that the meter can observe them
    with ContentionMeter(chosen) as meter:
        meter.start()
        began = time.perf_counter_ns()
        # Half a second in all: repeats of 50 ms are longer than a time slice, so that none lies within a slice.
        result = executor.benchmark(TimeEvaluator(repeat=10, min_repeat_ms=50.0))
        share = None if where else meter.share(time.perf_counter_ns() - began)
    inputs = {name: {"dtype": dtypes[name], "shape": list(shape)} for name, shape in shapes.items()}
    lines = [f"input {name}: {spec['dtype']}{spec['shape']}" for name, spec in inputs.items()]
    lines += [f"on {where}" if where else f"on {count(chosen, 'thread')}"]
    lines += [str(result), *filter(None, [busy_warning(share)])]
    timing = {"seconds": list(result.results), "contention": share, **({"gpu": where} if where else {})}
    output.say("\n".join(lines), inputs=inputs, threads=chosen, **timing)
