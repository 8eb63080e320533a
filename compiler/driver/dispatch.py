"""Dispatch contexts: select the program a workload is compiled with from tuning records.

    with ApplyHistoryBest(["tuned.json"]):
        state = DispatchContext.current.query(target, workload_key, True, dag)

Contexts nest: what the innermost context does not know is asked of the context around it. A thread that entered none
uses those of the thread that has, such as the thread that started a pool. A query changes nothing except a context's
memory of past queries.
"""

import logging
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from retune.compiler.core.errors import LogFormatError, OptionError, ScheduleError
from retune.compiler.core.target import Target
from retune.compiler.driver.pass_context import PassContext
from retune.compiler.measure.logs.history import best_trial, best_trials, carries_over, distance
from retune.compiler.measure.logs.log import LoggedTrial, code_target, from_record, read_log
from retune.compiler.measure.record import MeasureRecord, TaskProgram
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import State, replay

_log = logging.getLogger(__name__)

LOG_ENDINGS = (".json", ".jsonl", ".log")
"""How the names of logs in a folder end."""


class _Active(threading.local):
    """The contexts that a thread is in, the innermost last; whether it says nothing, and has said that it has none."""

    def __init__(self) -> None:
        self.stack: list[DispatchContext] = []
        self.silent = False
        self.has_warned = False


_ACTIVE = _Active()
_ENTERED: dict[int, "list[DispatchContext]"] = {}
"""The stacks of the threads that have entered contexts, by the number of the thread."""


def _own_stack() -> "list[DispatchContext]":
    """The contexts that this thread has entered, behind a context that knows nothing."""
    stack = _ACTIVE.stack
    if not stack:
        stack.append(FallbackContext())
    return stack


def _stack() -> "list[DispatchContext]":
    """The contexts that this thread uses: its own, or else those of the one thread, or of the main thread, that has
    entered some. A warning says once that it has none because several other threads have.
    """
    own = _own_stack()
    # A copy: other threads enter and leave meanwhile. TVM's contexts are global, so scripts build in pools of threads.
    others = dict(_ENTERED)
    if len(own) > 1 or not others:
        return own
    contexts = others.get(threading.main_thread().ident or 0)
    if contexts is None and len(others) == 1:
        (contexts,) = others.values()
    if contexts is not None:
        # A copy again: its owner may leave contexts while this thread asks.
        return list(contexts)
    if not (_ACTIVE.has_warned or _ACTIVE.silent):
        _ACTIVE.has_warned = True
        _log.warning(
            "%d threads have entered dispatch contexts, and this one none: it finds no records; enter one here",
            len(others),
        )
    return own


@runtime_checkable
class RecordSource(Protocol):
    """Where measured programs are kept, such as a record store."""

    def tasks(self) -> Sequence[Mapping[str, Any]]:
        """Every task that was tried, with the `target` it was tried on."""

    def best_per_task(self, target: str | None = None) -> Mapping[str, MeasureRecord]:
        """The fastest program of every task on a target."""


Record = str | Path | LoggedTrial | MeasureRecord
Records = str | Path | RecordSource | Iterable[Record]


def is_enabled() -> bool:
    """Whether networks that this thread compiles use tuning records: as the pass context says, or else once a dispatch
    context was entered, see `DispatchContext.current`.
    """
    wanted = PassContext.current().use_auto_scheduler
    return not isinstance(DispatchContext.current, FallbackContext) if wanted is None else wanted


def is_silent() -> bool:
    """Whether this thread is inside `suppress_dispatch_warnings`."""
    return _ACTIVE.silent


@contextmanager
def suppress_dispatch_warnings() -> Iterator[None]:
    """Inside, workloads without a record give no warning: the caller warns of all together."""
    before = is_silent()
    _ACTIVE.silent = True
    try:
        yield
    finally:
        _ACTIVE.silent = before


class _Current:
    """Descriptor of `DispatchContext.current`."""

    def __get__(self, instance: object, owner: type | None = None) -> "DispatchContext":
        return _stack()[-1]


class DispatchContext:
    """Answers which program a workload is compiled with. A subclass has `known`, or TVM's `_query_inside`."""

    current: ClassVar[_Current] = _Current()
    """The innermost context that this thread uses; without any, a context that knows nothing."""

    def query(self, target: Target, workload_key: str, has_complex_op: bool, dag: ComputeDAG) -> State | None:
        """The state of `dag` to compile for `target`, from here or a context around this; None when none knows.

        `has_complex_op` says whether the default schedule would be slow: it decides who is told.
        """
        state = self.known(target, workload_key, dag)
        outer = self._outer()
        if state is not None or outer is None:
            return state
        return outer.query(target, workload_key, has_complex_op, dag)

    def expected_seconds(self, target: Target, workload_key: str) -> float:
        """How long a call of the workload's program takes, as the records of this context or of one around it say; inf
        when none says so.
        """
        outer = self._outer()
        own = self.recorded_seconds(target, workload_key)
        return own if own < math.inf or outer is None else outer.expected_seconds(target, workload_key)

    def programs(self, target: Target) -> tuple[TaskProgram, ...]:
        """The programs that this context and those around it know for targets of that kind, of whichever task."""
        outer = self._outer()
        return (*self.recorded_programs(target), *(() if outer is None else outer.programs(target)))

    def recorded_programs(self, target: Target) -> tuple[TaskProgram, ...]:
        """Those of this context's own records."""
        del target
        return ()

    def recorded_seconds(self, target: Target, workload_key: str) -> float:
        """What this context's own records say of that; inf when it has none."""
        del target, workload_key
        return math.inf

    def known(self, target: Target, workload_key: str, dag: ComputeDAG) -> State | None:
        """What this context itself knows."""
        state = self._query_inside(target, workload_key)
        return None if state is None else replay(dag, state.steps)

    def _query_inside(self, target: Target, workload_key: str) -> Any:
        """What this context itself knows: anything with `steps`, or None."""
        raise NotImplementedError(f"{type(self).__name__} needs _query_inside(target, workload_key)")

    def update(self, target: Target, workload_key: str, state: State) -> None:
        """Answer with `state` from now on, whatever the records say."""
        raise NotImplementedError(f"{type(self).__name__} needs update(target, workload_key, state)")

    def __enter__(self) -> Self:
        stack = _own_stack()
        if self in stack:
            raise OptionError("this context is entered already; make another one")
        stack.append(self)
        _ENTERED[threading.get_ident()] = stack
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack = _own_stack()
        if stack[-1] is not self:
            raise OptionError("contexts must be left in the opposite order of entering them")
        stack.pop()
        if len(stack) == 1:
            _ENTERED.pop(threading.get_ident(), None)

    def _outer(self) -> "DispatchContext | None":
        stack = _stack()
        if self not in stack:
            return stack[-1]
        position = stack.index(self)
        return stack[position - 1] if position else None


class FallbackContext(DispatchContext):
    """Knows only what it was told: the outermost context of every thread. Says once of each workload that it is
    compiled untuned: with `verbose` 1 of those with heavy operators, with 2 of all, with 0 of none.
    """

    def __init__(self, verbose: int = 1) -> None:
        self.verbose = verbose
        self._states: dict[tuple[str, str], State] = {}
        self._warned: set[tuple[str, str]] = set()

    def query(self, target: Target, workload_key: str, has_complex_op: bool, dag: ComputeDAG) -> State | None:
        """What was told, else None."""
        state = self.known(target, workload_key, dag)
        key = (str(target), workload_key)
        silent = is_silent() or self.verbose < (1 if has_complex_op else 2)
        if state is None and not silent and key not in self._warned:
            self._warned.add(key)
            _log.warning("no tuning record for %s on %s: it is compiled untuned", workload_key, target)
        return state

    def known(self, target: Target, workload_key: str, dag: ComputeDAG) -> State | None:
        del dag
        return self._states.get((str(target), workload_key))

    def update(self, target: Target, workload_key: str, state: State) -> None:
        self._states[str(target), workload_key] = state


class ApplyHistoryBest(DispatchContext):
    """Answers with the fastest program in the records: of this target, else of a target of its kind.

    `records` is the path of a log, or of a folder, of which the files are read that end as logs do (`LOG_ENDINGS`); a
    record store; or any sequence of paths, trials and records. `n_lines` limits what is read of each log. With
    `include_compatible` a program of a smaller size serves where none of the size itself is known, if it fits. With
    `layout` programs that were measured with that layout option come first, see `retune.compiler.measure.logs.history`.
    Raises: LogFormatError when a log cannot be read, or a folder has none.
    """

    def __init__(
        self,
        records: Records | None = None,
        n_lines: int | None = None,
        include_compatible: bool = False,
        *,
        layout: int | None = None,
    ) -> None:
        self.include_compatible = include_compatible
        self.layout = layout
        self._best: list[LoggedTrial] = []
        self._updates: dict[tuple[str, str], State] = {}
        self.load(records, n_lines)

    def load(self, records: Records | None, n_lines: int | None = None) -> None:
        """Take in more records; the faster program of a workload stays.

        Raises: LogFormatError.
        """
        if records is not None:
            self._best = best_trials([*self._best, *_trials(records, n_lines)])

    def known(self, target: Target, workload_key: str, dag: ComputeDAG) -> State | None:
        updated = self._updates.get((str(target), workload_key))
        if updated is not None:
            return updated
        for trial in self._candidates(target, workload_key):
            try:
                return replay(dag, trial.steps)
            except ScheduleError as error:
                _log.warning("a record of %s does not fit %s: %s", trial.task.workload_key, workload_key, error)
        return None

    def update(self, target: Target, workload_key: str, state: State) -> None:
        self._updates[str(target), workload_key] = state

    def recorded_seconds(self, target: Target, workload_key: str) -> float:
        """The seconds of the record that would serve; those of a program of another size mean nothing here."""
        same = (trial for trial in self._candidates(target, workload_key) if trial.task.workload_key == workload_key)
        return next((trial.seconds for trial in same), math.inf)

    def recorded_programs(self, target: Target) -> tuple[TaskProgram, ...]:
        """The best program of every workload."""
        trials = (trial for trial in self._best if carries_over(trial.task.target_text, str(target)))
        return tuple(trial.program for trial in trials)

    def _candidates(self, target: Target, workload_key: str) -> Sequence[LoggedTrial]:
        """Programs to try, the most trustworthy first: this target, its kind, then other sizes by expected time."""
        trials = [trial for trial in self._best if carries_over(trial.task.target_text, str(target))]
        same = [trial for trial in trials if trial.task.workload_key == workload_key]
        exact = [trial for trial in same if code_target(trial.task.target_text) == str(target)]
        # Times of another CPU rank programs there, not here: so the exact target first, whatever the times.
        order = [best_trial(exact, layout=self.layout), best_trial(same, layout=self.layout)]
        if self.include_compatible:
            scaled = [(trial.seconds * distance(workload_key, trial.task.workload_key), trial) for trial in trials]
            # By the seconds alone, since trials have no order.
            order.extend(trial for seconds, trial in sorted(scaled, key=lambda pair: pair[0]) if seconds < float("inf"))
        return list(dict.fromkeys(trial for trial in order if trial is not None))


def _trials(records: Records, lines: int | None) -> Iterator[LoggedTrial]:
    """All trials of records in any form."""
    if isinstance(records, RecordSource):
        for target in sorted({str(task["target"]) for task in records.tasks()}):
            yield from map(from_record, records.best_per_task(target=target).values())
        return
    for source in [records] if isinstance(records, (str, Path)) else records:
        if isinstance(source, MeasureRecord):
            yield from_record(source)
        elif isinstance(source, LoggedTrial):
            yield source
        else:
            for log in _logs(Path(source)):
                yield from read_log(log, lines=lines)


def _logs(path: Path) -> list[Path]:
    """The logs at a path: the file, or those in the folder."""
    if not path.is_dir():
        return [path]
    logs = sorted(log for log in path.iterdir() if log.suffix in LOG_ENDINGS and log.is_file())
    if not logs:
        raise LogFormatError(f"the folder {path} has no log: no file there ends in {', '.join(LOG_ENDINGS)}")
    return logs
