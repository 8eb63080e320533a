"""The JSON log of TVM's auto-scheduler: reading and writing its lines.

Version "v0.6" is written, every older version is read; reading and writing a line preserves its content.

    {"i": [[key, target, [8 hardware parameters], host, layout option, [input names]], [[], [steps …]]],
     "r": [[seconds …], error number, seconds in all, timestamp], "v": "v0.6"}
A line holds no error text and no stages. Unknown keys are ignored, so that a newer writer does no harm. Several
processes may append to one log; a line that was cut off, because its writer was killed, costs only that line.
"""

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, SupportsInt

from retune.compiler.core.errors import LogFormatError, ScheduleError, TargetError
from retune.compiler.core.target import HardwareParams, Target, split_options
from retune.compiler.measure.record import MOMENTS, MeasureRecord, MeasureStatus, TaskProgram
from retune.compiler.runtime.archive import DAMAGE, damage_text
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.steps import Step, dump_steps, load_steps
from retune.compiler.schedule.steps.base import step_from_row
from retune.compiler.schedule.task import SearchTask

LOG_VERSION = "v0.6"
FAILED_COST = 1e10
"""Seconds that the log's format writes for a failure; they are never used as a cost."""

_log = logging.getLogger(__name__)

_HARDWARE_COUNT = 8
_HASH = re.compile(r"[0-9a-f]{32}|[0-9a-f]{16,}|-?\d{9,}")
"""The identifier of a computation in a key without a function name: an MD5 sum, or another function's hash."""
_LONGEST_NAME = 100
_TIMES = "x"
_NUMBER = re.compile(r"\d+\.[\de+-]*")
# TVM keeps hardware parameters in an int.
_PARAMETER = 2**31 - 1
_ULID_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_GENERATED_OPTIONS = ("-mtriple", "-mcpu", "-mattr", "-arch", "-math")
"""Options of a target that decide the generated code; TVM's others steer its own library calls and printing."""


@dataclass(frozen=True, slots=True)
class LoggedTask:
    """The task of a line, under the names of `SearchTask`, without the computation. `hardware` holds the eight
    parameters in the log's order, empty in old logs.
    """

    workload_key: str
    target_text: str
    hardware: tuple[int, ...] = ()
    target_host_text: str = ""
    layout: int = 0
    task_input_names: tuple[str, ...] = ()

    @classmethod
    def of(cls, task: SearchTask, target_host: str = "", task_input_names: Sequence[str] = ()) -> "LoggedTask":
        """The line's fields for a task of Retune."""
        hardware = tuple(task.hardware.to_row())
        names = tuple(task_input_names)
        return cls(task.workload_key, str(task.target), hardware, target_host, int(task.layout), names)

    @property
    def compute_dag(self) -> None:
        """None: `recover_measure_input` of `retune.compiler.tvm.auto_scheduler` looks up the computation."""
        return

    @property
    def target(self) -> Target:
        """The machine, by the options that decide its code. Raises: TargetError for an unknown kind of machine."""
        return Target(code_target(self.target_text))

    @property
    def target_host(self) -> Target | None:
        """The machine that drives a device. Raises: TargetError."""
        return Target(code_target(self.target_host_text)) if self.target_host_text else None

    @property
    def hardware_params(self) -> HardwareParams | None:
        """The parameters of the machine; old logs have none."""
        return HardwareParams.from_row(self.hardware) if self.hardware else None

    @property
    def layout_rewrite_option(self) -> LayoutRewriteOption:
        """The layout option of inputs of free layout."""
        return LayoutRewriteOption(self.layout)


@dataclass(frozen=True, slots=True)
class LoggedTrial:
    """One line: the task, the program's steps, and the outcome.

    `costs` are seconds per call, empty for a failure; `elapsed` is the seconds of building and running; `timestamp` is
    in seconds since 1970.
    """

    task: LoggedTask
    steps: tuple[Step, ...]
    costs: tuple[float, ...]
    status: MeasureStatus
    elapsed: float
    timestamp: int
    version: str = LOG_VERSION

    @property
    def seconds(self) -> float:
        """The deciding cost: the fastest repeat (TVM takes the mean); infinite for a failure."""
        return min(self.costs, default=math.inf)

    @property
    def program(self) -> TaskProgram:
        return TaskProgram(self.task.workload_key, dump_steps(self.steps), self.seconds)


def read_line(text: str) -> LoggedTrial:
    """The trial of one line. Raises: LogFormatError that says what is wrong with it."""
    try:
        line = json.loads(text)
        (task, state), result = line["i"], line["r"]
        costs, status, elapsed, timestamp = result[:4]
        trial = LoggedTrial(
            _task_of(task),
            tuple(step_from_row(row) for row in state[1]),
            tuple(float(cost) for cost in costs),
            MeasureStatus(status),
            _finite(elapsed),
            _moment(timestamp),
            str(line.get("v", "")),
        )
    except ScheduleError as error:
        raise LogFormatError(f"the line {_shorten(text)} holds a step that cannot be read: {error}") from None
    except DAMAGE as error:
        raise LogFormatError(f"the line {_shorten(text)} is no record of a tuning log: {damage_text(error)}") from None
    has_times = trial.status is MeasureStatus.OK and is_timed(trial.costs)
    if trial.status is MeasureStatus.OK and not has_times:
        raise LogFormatError(f"the line {_shorten(text)} claims success with costs of {list(trial.costs)} seconds")
    # TVM writes the cost 1e10 for a failure; kept, it would enter means and plots.
    return trial if has_times else replace(trial, costs=())


def is_timed(costs: Sequence[float]) -> bool:
    """Whether these are times of a program that ran."""
    return bool(costs) and all(0 < cost < FAILED_COST for cost in costs)


def write_line(trial: LoggedTrial) -> str:
    """The trial as one line, without its end, byte for byte as TVM writes it."""
    return re.sub(r'(?<="r": ).*(?=, "v")', lambda match: _NUMBER.sub(_short, match[0]), _line(trial))


def _short(match: re.Match[str]) -> str:
    """A number as C++ prints it, where that loses nothing: 15 and 1e+10."""
    text = f"{float(match[0]):g}"
    return text if float(text) == float(match[0]) else match[0]


def _line(trial: LoggedTrial) -> str:
    """The trial as Python writes JSON."""
    task = trial.task
    head: list[object] = [task.workload_key, task.target_text]
    if any(_options_of(task)[1:]):
        head += _options_of(task)[1:]
    # TVM's readers expect at least one cost.
    costs = list(trial.costs) or [FAILED_COST]
    line = {
        "i": [head, [[], [step.to_row() for step in trial.steps]]],
        "r": [costs, int(trial.status), trial.elapsed, trial.timestamp],
        "v": LOG_VERSION,
    }
    return json.dumps(line)


def read_log(path: Path, *, lines: int | None = None, skip: int = 0) -> Iterator[LoggedTrial]:
    """The trials of a log, at most `lines` of them, without the first `skip`; blank and `#` lines do not count.

    A line that was cut off is left out, with a warning. Lines that are appended meanwhile are not read, so a loop over
    a log may write to it.
    Raises: LogFormatError naming the file and the line, also when the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8") as file:
            line_count = sum(1 for _ in file)
            file.seek(0)
            numbered = ((number, text.strip()) for number, text in enumerate(islice(file, line_count), 1))
            trial_lines = ((number, text) for number, text in numbered if _is_trial(text, path, number))
            for number, text in islice(trial_lines, skip, None if lines is None else skip + lines):
                try:
                    yield read_line(text)
                except LogFormatError as error:
                    raise LogFormatError(f"{path}:{number}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LogFormatError(f"cannot read the log {path}: {error}") from error


def append_log(path: Path, trials: Iterable[LoggedTrial]) -> int:
    """Append the trials to a log, which is created with its folders when missing; returns their number.

    They are one write, so those of another process do not get between them, and begin a new line whatever the file ends
    with.
    Raises: LogFormatError when the file cannot be written.
    """
    text = "".join(write_line(trial) + "\n" for trial in trials)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+", buffering=0) as file:
            # O_APPEND writes of one call do not interleave; buffering could split them.
            remaining = memoryview((text if _ends_a_line(file) else f"\n{text}").encode())
            while remaining:
                remaining = remaining[file.write(remaining) :]
    except OSError as error:
        raise LogFormatError(f"cannot write the log {path}: {error.strerror}") from error
    return text.count("\n")


def to_record(trial: LoggedTrial, device: str) -> MeasureRecord:
    """The trial as a record of the store, measured on `device`.

    Its id is a hash of its content, so storing it a second time changes nothing. Fields without a column of records go
    into `options`, from where `from_record` restores them.
    """
    # A content hash: the same line imported twice is one record.
    identity = json.dumps([_line(trial), device])
    return MeasureRecord(
        record_id=_id_of(trial.timestamp, identity),
        run_id=f"log-{_digest(json.dumps([trial.task.target_text, trial.task.workload_key]))[:12]}",
        network="",
        task_key=trial.task.workload_key,
        task_name=readable_name(trial.task.workload_key),
        target=code_target(trial.task.target_text),
        device=device,
        threads=max(1, trial.task.hardware[0]) if trial.task.hardware else 1,
        steps=dump_steps(trial.steps),
        parent_id="",
        mutation="",
        predicted=None,
        costs=trial.costs,
        status=trial.status,
        error="" if trial.status is MeasureStatus.OK else "the log that this trial was read from keeps no error text",
        build_seconds=0.0,
        run_seconds=trial.elapsed,
        options=json.dumps({"log": _options_of(trial.task), "version": trial.version}),
        seed=0,
        round=0,
        elapsed=0.0,
        engine_version="tuning-log",
        llvm_version="",
        timestamp=float(trial.timestamp),
    )


def from_record(record: MeasureRecord) -> LoggedTrial:
    """The record as a line of a log.

    Records do not contain the option for inputs of free layout: Retune's own are of kernels of networks, so the line
    has the option of networks. An imported log is restored unchanged.
    Raises: LogFormatError when its steps cannot be read.
    """
    try:
        steps = load_steps(record.steps)
    except ScheduleError as error:
        raise LogFormatError(f"record {record.record_id}: {error}") from None
    # A record keeps only the threads: 64-byte vectors and cache lines are filled in, TVM's defaults for a CPU.
    hardware = (record.threads, 64, 64, 0, 0, 0, 0, 0)
    task = LoggedTask(record.task_key, record.target, hardware, "", _network_layout(record.target))
    logged = _logged_options(record.options)
    if logged is not None:
        try:
            task = _task_of([record.task_key, *logged])
        except DAMAGE as error:
            raise LogFormatError(f"record {record.record_id}: its options name no task: {error}") from None
    elapsed = record.build_seconds + record.run_seconds
    costs = record.costs if record.status is MeasureStatus.OK else ()
    return LoggedTrial(task, steps, costs, record.status, elapsed, int(record.timestamp))


def code_target(text: str) -> str:
    """The part of a TVM target that decides the generated code, in Retune's syntax; an unreadable text unchanged."""
    words = split_options(text)
    code_options = [word for word in words[1:] if word.partition("=")[0] in _GENERATED_OPTIONS]
    try:
        return str(Target(" ".join([*words[:1], *code_options])))
    except TargetError:
        return text


def _task_of(row: Any) -> LoggedTask:
    """The task array of a line: two elements in the oldest logs, then three, five and six."""
    key, target = row[:2]
    if not isinstance(key, str) or not isinstance(target, str):
        raise TypeError("a task starts with the strings of its workload key and target")
    hardware = tuple(_check_bound(number, _PARAMETER) for number in row[2]) if len(row) > 2 else ()
    if hardware and len(hardware) != _HARDWARE_COUNT:
        raise ValueError(f"{len(hardware)} hardware parameters instead of {_HARDWARE_COUNT}")
    host, layout = (str(row[3]), int(LayoutRewriteOption(row[4]))) if len(row) > 4 else ("", 0)
    names = tuple(str(name) for name in row[5]) if len(row) > 5 else ()
    for text in (key, target, host, *names):
        text.encode()  # half a character cannot be written again
    return LoggedTask(key, target, hardware, host, layout, names)


def _check_bound(number: SupportsInt, most: int) -> int:
    """An integer within the size of its field."""
    if not -most <= int(number) <= most:
        raise ValueError(f"{number} is too large")
    return int(number)


def _moment(number: SupportsInt) -> int:
    if int(number) not in MOMENTS:
        raise ValueError(f"{number} is no time in the years 1 to 9999")
    return int(number)


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{number} is no time")
    return float(number)


def _is_trial(text: str, path: Path, number: int) -> bool:
    """Whether a line is neither blank, nor a comment, nor cut off."""
    if text.startswith("{") and not text.endswith("}"):
        _log.warning("%s:%d: the line was cut off and is left out", path, number)
        return False
    return bool(text) and not text.startswith("#")


def _ends_a_line(file: IO[bytes]) -> bool:
    """Whether a file open for appending is empty or ends with a newline."""
    if not file.seek(0, os.SEEK_END):
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _options_of(task: LoggedTask) -> list[object]:
    names = list(task.task_input_names)
    return [task.target_text, list(task.hardware), task.target_host_text, task.layout, names]


def _logged_options(options: str) -> list[Any] | None:
    """The fields that `to_record` saved, or None for a record of Retune."""
    try:
        fields = json.loads(options).get("log")
    except (ValueError, AttributeError, RecursionError):
        return None
    return fields if isinstance(fields, list) else None


def _network_layout(target: str) -> int:
    try:
        return int(LayoutRewriteOption.get_target_default(Target(target), in_relay_integration=True))
    except TargetError:
        return int(LayoutRewriteOption.NO_REWRITE)


def readable_name(key: str) -> str:
    """A workload key for people: the registered function and its arguments, or the shapes of a computation named by its
    hash; a string that is no key unchanged.
    """
    try:
        decoded = json.loads(key)
    except (ValueError, RecursionError):
        return key
    if not isinstance(decoded, list) or not decoded:
        return key
    name, *arguments = decoded
    shapes = [_TIMES.join(map(str, argument)) or "1" for argument in arguments if isinstance(argument, list)]
    if _HASH.fullmatch(str(name)) and shapes and len(shapes) == len(arguments):
        *inputs, output = shapes
        return _cut(f"{str(name)[:8]}: {', '.join(inputs) or 'nothing'} to {output}")
    return _cut(f"{name}({', '.join(map(_abbreviate, arguments))})" if arguments else str(name))


def _abbreviate(argument: object) -> str:
    """An argument of a workload key, abbreviated: tensors and other sequences of numbers as 1x2x3."""
    if isinstance(argument, list) and len(argument) == 3 and argument[0] == "TENSOR":
        return f"{_abbreviate(argument[1])} {argument[2]}"
    if isinstance(argument, list):
        return _TIMES.join(map(_abbreviate, argument))
    return str(argument)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _id_of(timestamp: int, identity: str) -> str:
    """A ULID: 48 bits of milliseconds, then 80 bits of the text's digest."""
    # 20 hexadecimal digits are the 80 bits that a ULID has for randomness; time first, so that ids sort by it.
    number = ((timestamp * 1000) & (2**48 - 1)) << 80 | int(_digest(identity)[:20], 16)
    return "".join(_ULID_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
