"""A peer in another interpreter: a script that answers each line of its input by a line of JSON.

The first answer comes by itself, when the peer is ready. The process ends with the context.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

from retune.compiler.core import config
from retune.compiler.core.errors import MeasureError

_OUTPUT_CHARACTERS = 2000


class PeerProcess:
    """A script of this folder, run by `interpreter` with `asked`, in JSON, as argument; `ready` is its first answer."""

    def __init__(
        self, interpreter: str, script: str, asked: Mapping[str, object], peer: str, environment: Mapping[str, str]
    ) -> None:
        """Raises: MeasureError with the last output when the interpreter or the `peer` in it cannot."""
        self._peer = peer
        self._stderr = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (`close` closes it)
        try:
            self._process = subprocess.Popen(
                [interpreter, str(Path(__file__).with_name(script)), json.dumps(asked)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
                env=config.child_environment(environment),
            )
        except OSError as error:
            self._stderr.close()
            raise MeasureError(f"the interpreter {interpreter!r} for {peer} cannot be started: {error}") from None
        try:
            self.ready = self._answer()
        except MeasureError:
            self.close()
            raise

    def times(self, seconds: float) -> list[float]:
        """Seconds of single calls, timed for about `seconds`; none where nothing ran."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return [float(seconds) for seconds in self._answer()["times"]]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._stderr.seek(0)
            output = self._stderr.read()[-_OUTPUT_CHARACTERS:]
            raise MeasureError(f"{self._peer} ended early; its last output:\n{output}")
        answer: dict[str, Any] = json.loads(line)
        return answer
