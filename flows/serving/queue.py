"""Runs the requests of one network: a bounded queue, a number of instances, and batches where they are asked for."""

import asyncio
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from retune.compiler.core.errors import OptionError, RetuneError
from retune.compiler.runtime.artifact import Array
from retune.flows.serving.model import ANY, Model, TensorSpec


class QueueFullError(RetuneError):
    """More requests wait than the queue takes."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request that waits: its arrays, its rows in a batch, and the future of its outputs. When it is `due`, on the
    monotonic clock, it no longer waits for others to share its run.
    """

    inputs: Mapping[str, Array]
    rows: int
    due: float
    row_shapes: Sequence[tuple[int, ...]]
    """The shapes of a row of each input."""
    result: "asyncio.Future[dict[str, Array]]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class RequestQueue:
    """The requests of one network.

    As many run at a time as the model has instances; up to `capacity` more wait. With `batch_seconds` above 0, requests
    of fewer rows than the network's first dimension wait so long for others and share a run; the rest of the rows are
    zeros, and there are none where the dimension is dynamic. Requests that share a run have equal other dimensions.
    Otherwise each request is its own run and has all rows. `runs` and `busy_seconds` count what has run.
    """

    def __init__(self, model: Model, *, capacity: int = 64, batch_seconds: float = 0.0) -> None:
        self.inputs, self.outputs = model.inputs, model.outputs
        self.rows = _batch_rows(self.inputs, self.outputs) if batch_seconds else 1
        self.runs = 0
        self.busy_seconds = 0.0
        self._model = model
        self._batch_seconds = batch_seconds
        self._capacity = capacity
        self._instances = model.instances
        # All state belongs to the event loop's thread, so that it needs no lock; only `_compute` runs in others.
        self._waiting: deque[_Waiting] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        # As many threads as instances: more would wait for an executor and hold a request back.
        self._threads = ThreadPoolExecutor(model.instances, "retune-serve")

    @property
    def depth(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    async def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs for arrays of the network's shapes, by name.

        Raises: QueueFullError; OptionError for a shape that does not fit.
        """
        rows = self._check(inputs)
        # A request that could start at once does not count as waiting.
        if len(self._waiting) >= self._capacity + (self._instances - len(self._running)):
            raise QueueFullError(f"{len(self._waiting)} requests wait already: try again later")
        row_shapes = [inputs[spec.name].shape[1:] for spec in self.inputs]
        waiting = _Waiting(inputs, rows, time.monotonic() + self._batch_seconds, row_shapes)
        self._waiting.append(waiting)
        self._start()
        return await waiting.result

    async def close(self) -> None:
        """Wait for the runs that have begun, and let none begin."""
        for waiting in self._waiting:
            waiting.result.cancel()
        self._waiting.clear()
        if self._running:
            await asyncio.wait(self._running)
        self._threads.shutdown()

    def _check(self, inputs: Mapping[str, Array]) -> int:
        """The rows of a request. Raises: OptionError."""
        first = next(iter(inputs.values()), None)
        rows = first.shape[0] if self._batch_seconds and first is not None and first.ndim else 1
        for spec in self.inputs:
            shape = inputs[spec.name].shape
            if self._batch_seconds and shape[:1] == (rows,) and 0 < rows <= self.rows:
                fits = spec.takes((*spec.shape[:1], *shape[1:]))
            else:
                fits = not self._batch_seconds and spec.takes(shape)
            if not fits:
                actual = list(inputs[spec.name].shape)
                most = f", with at most {self.rows} rows" if self._batch_seconds else ""
                raise OptionError(f"input {spec.name}: the shape must be {list(spec.shape)}{most}, not {actual}")
        self._model.check(inputs)
        return rows

    def _start(self) -> None:
        """Begin as many runs as there are instances; a batch that is not full waits until its first request is due."""
        while self._waiting and len(self._running) < self._instances:
            is_full = sum(waiting.rows for waiting in self._alike()) >= self.rows
            left = self._waiting[0].due - time.monotonic()
            # Dynamic batching, as in Triton: latency is traded for throughput, by `batch_seconds` at most.
            if not is_full and left > 0:
                # One timer for the oldest request: those behind it share its run or get the next.
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(left, self._due)
                return
            task = asyncio.ensure_future(self._run(self._take()))
            self._running.add(task)
            task.add_done_callback(self._finish)

    def _due(self) -> None:
        self._timer = None
        self._start()

    def _finish(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        self._start()

    def _take(self) -> list[_Waiting]:
        """The requests of the next run."""
        taken, rows = list[_Waiting](), 0
        for waiting in self._alike():
            rows += waiting.rows
            if taken and (not self._batch_seconds or rows > self.rows):
                break
            taken.append(waiting)
            self._waiting.remove(waiting)
        return taken

    def _alike(self) -> list[_Waiting]:
        """The oldest request, and those that may share its run: they differ from it in rows alone."""
        kind = self._waiting[0].row_shapes
        return [waiting for waiting in self._waiting if waiting.row_shapes == kind]

    async def _run(self, taken: list[_Waiting]) -> None:
        """Compute the outputs of requests in one run, and set their results or the error of the run."""
        live = [waiting for waiting in taken if not waiting.result.done()]  # a client that left cancels its request
        if not live:
            return
        loop = asyncio.get_running_loop()
        began = time.perf_counter()
        try:
            # In a thread: the event loop answers other requests while a network runs; kernels release the GIL.
            results = await loop.run_in_executor(self._threads, self._compute, [waiting.inputs for waiting in live])
        except Exception as error:
            for waiting in live:
                if not waiting.result.done():
                    waiting.result.set_exception(error)
            return
        finally:
            self.runs += 1
            self.busy_seconds += time.perf_counter() - began
        start = 0
        for waiting in live:
            part = slice(start, start + waiting.rows)
            start += waiting.rows
            if not waiting.result.done():
                waiting.result.set_result(
                    {name: array[part] for name, array in results.items()} if self._batch_seconds else results
                )

    def _compute(self, requests: list[Mapping[str, Array]]) -> dict[str, Array]:
        arrays = requests[0] if not self._batch_seconds else _batch(self.inputs, requests)
        outputs = self._model.run(arrays)
        rows = arrays[self.inputs[0].name].shape[:1] if self._batch_seconds and self.inputs else ()
        for name, array in outputs.items():
            if rows and array.shape[:1] != rows:
                raise OptionError(f"output {name} is {list(array.shape)} for {rows[0]} rows: serve without --batch-ms")
        return outputs


def _batch_rows(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
    """The most rows of a run: the first dimension that all inputs and outputs share.

    Raises: OptionError when there is none.
    """
    # Whether a dynamic output has a row for each row of the inputs shows when it runs.
    known = (*inputs, *(spec for spec in outputs if spec.shape[:1] != (ANY,)))
    rows = {(sys.maxsize if spec.most[0] is None else spec.most[0]) if spec.most else 0 for spec in known}
    if len(rows) != 1 or min(rows) < 2:
        numbers = ", ".join("any" if row == sys.maxsize else str(row) for row in sorted(rows))
        raise OptionError(
            "batches need a network that was compiled for several rows: the first dimension of every input and output "
            f"must be the same number above 1, not {numbers}"
        )
    return rows.pop()


def _batch(specs: tuple[TensorSpec, ...], requests: list[Mapping[str, Array]]) -> dict[str, Array]:
    """The arrays of several requests below each other, and zeros below them."""
    joined = {}
    for spec in specs:
        # Zeros and not what memory holds: rows are independent, but NaN or huge indices may be slow or out of bounds.
        parts = [request[spec.name] for request in requests]
        rows = sum(map(len, parts))
        most = rows if spec.shape[0] == ANY else spec.shape[0]
        array = np.zeros((most, *parts[0].shape[1:]), spec.dtype)
        array[:rows] = np.concatenate(parts)
        joined[spec.name] = array
    return joined
