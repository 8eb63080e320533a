"""A Prefect server that is gone: the embedded one is started once more, one at an address is waited for."""

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from retune.compiler.core import config
from retune.compiler.core.errors import OptionError, ServerError
from retune.flows.cli import exits
from retune.flows.server import run_server as server
from tests.support.flows.networks import write_mlp
from tests.support.flows.runs import command, environment_on, processes_of, rounds, stored
from tests.support.flows.servers import free_port
from tests.support.flows.servers import server as prefect_server

URL = "http://127.0.0.1:1/api"
PATIENCE_SECONDS = 400.0


class Client:
    """Answers as often as `answers` says, one by one."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)

    def api_healthcheck(self) -> Exception | None:
        """What Prefect's client does."""
        return None if self.answers.pop(0) else httpx.ConnectError("refused")


def test_a_server_that_answers_is_not_spoken_of(capsys: pytest.CaptureFixture[str]) -> None:
    server._await_answer(Client(True), URL, 60.0)  # type: ignore[arg-type] # it is asked for its health alone
    assert capsys.readouterr().err == ""


def test_a_server_is_waited_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    server._await_answer(Client(False, False, True), URL, 1e6)  # type: ignore[arg-type]
    waiting, back = capsys.readouterr().err.splitlines()
    assert waiting == f"retune: the Prefect server at {URL} does not answer (refused); " + (
        "waiting for it up to 1e+06 s, as prefect_wait says"
    )
    assert back == f"retune: the Prefect server at {URL} answers again"


def test_a_server_is_not_waited_for_longer_than_the_setting_says() -> None:
    with pytest.raises(ServerError, match="did not answer for 0 s: start it, or unset PREFECT_API_URL"):
        server._await_answer(Client(False, False), URL, 0.0)  # type: ignore[arg-type]


def test_a_client_does_not_give_up_before_the_run_does() -> None:
    def bridged(**settings: str) -> float:
        environment = {**settings, "PREFECT_API_URL": URL}
        for name in ("RETUNE_PREFECT_WAIT", "PREFECT_API_URL"):
            patch.setenv(name, environment.get(name, "60"))
        retries = int(config.prefect_environment(Path("home"))["PREFECT_CLIENT_MAX_RETRIES"])
        return float(sum(2**number for number in range(1, retries + 1)))

    with pytest.MonkeyPatch.context() as patch:
        assert bridged() > 60
        assert bridged(RETUNE_PREFECT_WAIT="0") > 0
        assert bridged(RETUNE_PREFECT_WAIT="3600") > 3600


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ReadTimeout("")])
def test_an_error_on_the_way_to_the_server_is_one_of_the_server(error: Exception) -> None:
    def fail() -> None:
        try:
            raise error
        except httpx.HTTPError as cause:
            raise RuntimeError("Failed to reach API") from cause

    with pytest.raises(ServerError, match=str(error) or "ReadTimeout"), server.server_errors():
        fail()


def test_a_fault_while_an_error_of_the_server_is_handled_stays_one() -> None:
    def fail() -> None:
        try:
            raise httpx.ConnectTimeout("a request that was got over")
        except httpx.TransportError:
            raise KeyError("a fault")  # noqa: B904 - as by mistake

    with pytest.raises(KeyError, match="a fault"), server.server_errors():
        fail()


@pytest.mark.parametrize("error", [OptionError("a mistake"), ValueError("a fault")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error), match="a "), server.server_errors():
        raise error


def test_an_embedded_server_that_does_not_start_is_tried_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    embedded = Embedded(1, 1)
    with pytest.raises(ServerError, match="did not start: try again"):
        server._await_start(embedded)  # type: ignore[arg-type]
    assert embedded.restarts == 1
    assert "trying once more" in capsys.readouterr().err


class Embedded:
    """A server whose processes end at once, with these codes."""

    url = URL

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.process = self
        self.restarts = 0

    def wait(self) -> int:
        """The code of the next one."""
        return self.codes.pop(0)

    def poll(self) -> int:
        """The code of the present one."""
        return self.codes[0]

    def kill(self) -> None:
        """It has ended."""

    def stop(self) -> None:
        """It has ended."""

    def restart(self) -> None:
        """Begin the next one."""
        self.restarts += 1


@pytest.mark.parametrize(("comes_back", "code"), [(True, -15), (False, -9)])
def test_an_embedded_server_is_started_again_once(
    comes_back: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[tuple[str, int]] = []
    monkeypatch.setattr(server, "_answers", lambda _: comes_back)
    monkeypatch.setattr(server, "end", lambda *end: ends.append(end))
    watched: Any = Embedded(-9, -15)
    run_once(lambda: server._watch_process(watched, threading.Event()))
    assert (
        "retune: warning: the embedded Prefect server ended with code -9; starting it again\n"
        in capsys.readouterr().err
    )
    assert ends[0][1] == exits.UNAVAILABLE
    assert f"ended with code {code} and stays away; finished rounds are kept" in ends[0][0]


def run_once(watch: Callable[[], None]) -> None:
    """A watch goes on after an end that is only noted, to servers that are not there."""
    try:
        watch()
    except IndexError:
        return


def test_the_end_of_a_server_after_the_run_is_not_spoken_of(capsys: pytest.CaptureFixture[str]) -> None:
    over = threading.Event()
    over.set()
    watched: Any = Embedded(-15)
    server._watch_process(watched, over)
    assert capsys.readouterr().err == ""


def uvicorn_of(process: "subprocess.Popen[bytes]") -> psutil.Process:
    """The embedded server of a run."""
    (found,) = (one for one in psutil.Process(process.pid).children() if "uvicorn" in " ".join(one.cmdline()))
    return found


def begin(folder: Path, **extra: str) -> "tuple[subprocess.Popen[bytes], Path, Path]":
    """A run of the command line, its state folder and what it says."""
    network, home, log = write_mlp(folder / "small.onnx"), folder / "state", folder / "log.txt"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command(network, home), "--batch", "2"], stdout=stream, stderr=stream, env=environment_on(home, **extra)
        )
    return process, home, log


def until(process: "subprocess.Popen[bytes]", log: Path, holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < limit, log.read_text()
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 2])
def test_a_run_survives_one_end_of_its_embedded_server(tmp_path: Path, kills: int) -> None:
    process, home, log = begin(tmp_path)
    try:
        until(process, log, lambda: rounds(home) >= 2)
        for number in range(kills):
            uvicorn_of(process).kill()
            until(process, log, lambda: log.read_text().count("starting it again") == 1)
            if number == 0:
                until(process, log, lambda: "answers again" in log.read_text())
        code = process.wait(PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert code == (exits.OK if kills == 1 else exits.UNAVAILABLE), log.read_text()
    assert "Traceback" not in log.read_text()
    assert len(stored(home)) == 24 if kills == 1 else len(stored(home)) >= 4
    if kills == 2:
        assert log.read_text().splitlines()[-1].endswith("the same command goes on from there")
    limit = time.monotonic() + 120
    while processes_of(home) and time.monotonic() < limit:
        time.sleep(0.1)
    assert processes_of(home) == []


@pytest.mark.slow
@pytest.mark.parametrize("when", ["at the start", "in the run"])
def test_a_run_ends_with_69_where_the_server_at_an_address_stays_away(tmp_path: Path, when: str) -> None:
    port = free_port()
    settings = {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api", "RETUNE_PREFECT_WAIT": "3"}
    if when == "at the start":
        process, home, log = begin(tmp_path, **settings)
    else:
        with prefect_server(tmp_path / "prefect", port):
            process, home, log = begin(tmp_path, **settings)
            until(process, log, lambda: rounds(home) >= 2)
    try:
        code = process.wait(PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert code == exits.UNAVAILABLE, log.read_text()
    waiting, *_, last = (line for line in log.read_text().splitlines() if line.startswith("retune: "))
    assert "does not answer" in waiting
    assert "did not answer for 3 s" in last


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_whose_server_is_away(tmp_path: Path, signum: int, code: int) -> None:
    port = free_port()
    with prefect_server(tmp_path / "prefect", port):
        process, home, log = begin(tmp_path, PREFECT_API_URL=f"http://127.0.0.1:{port}/api")
        until(process, log, lambda: rounds(home) >= 2)
    try:
        until(process, log, lambda: "does not answer" in log.read_text())
        process.send_signal(signum)
        assert process.wait(PATIENCE_SECONDS) == code, log.read_text()
    finally:
        process.kill()
        process.wait()
