"""Tuning logs in TVM's format: reads, writes and distills them.

A round trip preserves everything but error messages, which the format does not store. Unknown keys in a line are
ignored.

    python -m retune.compiler.tvm.auto_scheduler.measure_record --mode distill -i tune.json [-o best.json]

keeps the best record of every workload, target and layout option.
"""

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from retune.compiler.core.errors import OptionError, RetuneError
from retune.compiler.core.target import Target
from retune.compiler.measure.logs.history import best_trial, distance, distill
from retune.compiler.measure.logs.log import LoggedTask, append_log, read_line, read_log, write_line
from retune.compiler.schedule import state as immutable
from retune.compiler.schedule.bounds import infer_bounds
from retune.compiler.tvm.auto_scheduler.compute_dag import ComputeDAG
from retune.compiler.tvm.auto_scheduler.loop_state import State
from retune.compiler.tvm.auto_scheduler.measure import MeasureInput, MeasureResult, measurement_of, trial_of
from retune.compiler.tvm.auto_scheduler.search_task import SearchTask

_log = logging.getLogger(__name__)

Measured = tuple[MeasureInput, MeasureResult]


class RecordToFile:
    """A measure callback that appends every round to a log; missing files and folders are created.

    Raises: LogFormatError when it cannot be written.
    """

    def __init__(self, filename: str | Path) -> None:
        self.filename = Path(filename)

    def callback(self, policy: Any, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> None:  # noqa: ARG002
        save_records(self.filename, inputs, results)


class RecordReader:
    """Reads a log, light (see `recover_measure_input`), in a `for` or by lines. A missing file warns and is empty."""

    def __init__(self, filename: str | Path) -> None:
        self.filename = Path(filename)
        if not self.filename.exists():
            _log.warning("there is no log %s", self.filename)

    def read_lines(
        self, max_lines: int | None = None, skip_lines: int = 0
    ) -> tuple[list[MeasureInput], list[MeasureResult]]:
        """At most `max_lines` records after `skip_lines`. Raises: LogFormatError; OptionError below 0."""
        if skip_lines < 0 or (max_lines is not None and max_lines < 0):
            raise OptionError(f"there cannot be fewer than no lines: max_lines={max_lines}, skip_lines={skip_lines}")
        records = list(self._read(max_lines, skip_lines))
        return [inp for inp, _ in records], [result for _, result in records]

    def __iter__(self) -> Iterator[Measured]:
        return self._read(None, 0)

    def _read(self, most: int | None, skip: int) -> Iterator[Measured]:
        if self.filename.exists():
            yield from map(measurement_of, read_log(self.filename, lines=most, skip=skip))


def load_records(filename: str | Path) -> list[Measured]:
    """All records of a log, light; see `recover_measure_input`. `RecordReader` reads a long log line by line.

    Raises: LogFormatError.
    """
    return [measurement_of(trial) for trial in read_log(Path(filename))]


def save_records(filename: str | Path, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]) -> None:
    """Append records to a log, creating it with its folders if needed.

    Raises: OptionError for different numbers of inputs and results; LogFormatError.
    """
    if len(inputs) != len(results):
        raise OptionError(f"each input needs one result: there are {len(inputs)} inputs and {len(results)} results")
    append_log(Path(filename), map(trial_of, inputs, results))


def load_record_from_string(record: str) -> Measured:
    """One line of a log, light. Raises: LogFormatError."""
    return measurement_of(read_line(record))


def dump_record_to_string(inp: MeasureInput, res: MeasureResult) -> str:
    """The record as a line of a log, without its end."""
    return write_line(trial_of(inp, res))


def load_best_record(
    filename: str | Path,
    workload_key: str | None = None,
    target: Target | str | None = None,
    include_compatible: bool = False,
    *,
    layout_rewrite_option: int | None = None,
) -> tuple[MeasureInput | None, MeasureResult | None]:
    """The successful record with the lowest cost, light; a pair of None if there is none.

    `workload_key` and `target` (its kind) restrict the records. With `include_compatible` smaller sizes of the workload
    count too, their costs scaled by the ratio of work. With `layout_rewrite_option` records of other options count only
    if there is none of that option.
    Raises: LogFormatError.
    """
    kind = None if target is None else str(target)
    trials = read_log(Path(filename))
    best = best_trial(trials, workload_key, kind, include_compatible=include_compatible, layout=layout_rewrite_option)
    return (None, None) if best is None else measurement_of(best)


def recover_measure_input(inp: MeasureInput, rebuild_state: bool = False) -> MeasureInput:
    """A light input with its whole task; with `rebuild_state` also with the program's loops.

    Raises: UnknownWorkloadError when the workload is not registered here, ScheduleError when the steps do not fit it.
    """
    task = inp.task
    if isinstance(task, LoggedTask):
        task = SearchTask(
            compute_dag=ComputeDAG(task.workload_key),
            workload_key=task.workload_key,
            target=task.target,
            target_host=task.target_host,
            hardware_params=task.hardware_params,
            layout_rewrite_option=task.layout_rewrite_option,
            task_inputs=task.task_input_names,
        )
    if not rebuild_state:
        return MeasureInput(task, inp.state)
    # Replay gives loops without the extents of attached stages, which TVM's recovered states have.
    return MeasureInput(task, State(infer_bounds(immutable.replay(task.dag, inp.state.steps))))


def calc_workload_dis_factor(target_workload_key: str, workload_key: str) -> float:
    """Ratio of the work of the first workload to the second's; infinite if programs do not carry over."""
    return distance(target_workload_key, workload_key)


def distill_record_file(in_file: str | Path, out_file: str | Path) -> int:
    """Keep the best record of every workload in `out_file`, merged with its content; returns the number of records.

    Raises: LogFormatError.
    """
    return distill(Path(in_file), Path(out_file))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command of this module. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="measure_record", description="Keep the best records of a tuning log.")
    parser.add_argument("--mode", choices=["distill"], required=True)
    parser.add_argument("-i", "--input", type=Path, required=True, help="the log")
    parser.add_argument("-o", "--output", type=Path, help="the best records; default: the log's name with .best.json")
    options = parser.parse_args(arguments)
    try:
        distill_record_file(options.input, options.output or Path(f"{options.input}.best.json"))
    except RetuneError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
