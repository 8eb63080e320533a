"""In: how to measure. Out: the processes that build and time programs.

Always: started once a run, gone when the block ends.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from compiler.measure.builder import LocalBuilder
from compiler.measure.options import MeasureOptions
from compiler.measure.runner import LocalRunner


class Workers:
    """The build processes and the timing process of a run. A plain class, so that Prefect hands it on as it is."""

    def __init__(self, builder: LocalBuilder, runner: LocalRunner) -> None:
        self.builder = builder
        self.runner = runner


@contextmanager
def open_workers(options: MeasureOptions) -> Iterator[Workers]:
    """Build processes on all cores, and one process that times programs on `options.threads` threads."""
    with LocalBuilder(timeout=options.build_timeout_s) as builder, LocalRunner(options=options) as runner:
        yield Workers(builder, runner)
