"""In: how to measure. Out: the processes that build and time programs.

Always: started once a run, gone when the block ends.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from compiler.measure.measurer import LocalMeasurer
from compiler.measure.options import MeasureOptions


class Workers:
    """The build processes and the timing process of a run. A plain class, so that Prefect hands it on as it is."""

    def __init__(self, measurer: LocalMeasurer) -> None:
        self.measurer = measurer
        self.builder = measurer.builder
        self.runner = measurer.runner


@contextmanager
def open_workers(options: MeasureOptions) -> Iterator[Workers]:
    """Build processes on all cores, and one process that times programs on `options.threads` threads."""
    with LocalMeasurer.with_options(options) as measurer:
        yield Workers(measurer)
