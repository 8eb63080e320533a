"""In: a thread count. Out: the processes that build and time programs. Always: started once a run, gone when the block ends."""

from collections.abc import Iterator
from contextlib import contextmanager

from compiler import config
from compiler.measure.builder import LocalBuilder
from compiler.measure.runner import LocalRunner


class Workers:
    """The build processes and the timing process of a run. A plain class, so that Prefect hands it on as it is."""

    def __init__(self, builder: LocalBuilder, runner: LocalRunner) -> None:
        self.builder = builder
        self.runner = runner


@contextmanager
def open_workers(threads: int) -> Iterator[Workers]:
    """Build processes on all cores, and one process that times programs on `threads` threads."""
    with LocalBuilder(n_parallel=config.usable_cores()) as builder, LocalRunner(threads=threads) as runner:
        yield Workers(builder, runner)
