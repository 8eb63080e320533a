"""What programs end with: the exit code tells a user's mistake, a server that is gone and a fault of ours apart."""

import os
import signal
import subprocess
import sys

import pytest

from retune.compiler.core.errors import OptionError, ServerError
from retune.flows.cli import exits
from retune.flows.cli.toplevel import run_guarded


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OptionError("there is no such network"), exits.USER_ERROR, "retune: there is no such network\n"),
        (ServerError("no server"), exits.UNAVAILABLE, "retune: no server\n"),
        (KeyboardInterrupt(), exits.INTERRUPTED, "retune: stopped here\n"),
    ],
)
def test_an_exception_is_one_sentence(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> int:
        raise error

    assert run_guarded(main, "stopped here") == code
    assert capsys.readouterr().err == said


def test_an_unknown_exception_is_a_fault_of_ours_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise KeyError("lost", "sftp://me:secret@host/store")

    assert run_guarded(main) == exits.BUG
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "secret" not in said
    assert said.splitlines()[-1].startswith("retune: a fault of Retune itself, please report it: KeyError")


GUARDED = "import errno, sys\nfrom retune.flows.cli.toplevel import run_guarded\n"


@pytest.mark.parametrize(
    "code",
    [
        GUARDED + "sys.exit(run_guarded(lambda: print('x' * 10**6)))",
        GUARDED + "sys.exit(run_guarded(lambda: print('in the buffer until the end')))",
        "import sys\nfrom retune.flows.cli import app as cli\nsys.argv[1:] = ['--version']\ncli.main()",
        "import sys\nfrom retune.flows.cli import app as cli\nsys.argv[1:] = ['networks', '--json']\ncli.main()",
        "import sys\nfrom retune.flows.cli import app as cli\nsys.argv[1:] = ['networks']\ncli.main()",
        pytest.param(
            "import sys\nfrom retune.flows.cli import app as cli\nsys.argv[1:] = ['doctor']\ncli.main()",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_program_whose_reader_went_away_ends_as_if_by_sigpipe(code: str) -> None:
    receiver, sender = os.pipe()
    os.close(receiver)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=sender, stderr=subprocess.PIPE, timeout=300, check=False
        )
    finally:
        os.close(sender)
    assert (done.returncode, done.stderr) == (exits.CUT_OFF, b"") == (128 + signal.SIGPIPE, b"")


def test_a_broken_pipe_other_than_stdout_is_a_fault_of_ours() -> None:
    code = GUARDED + "def main(): raise BrokenPipeError(errno.EPIPE, 'a socket')\nsys.exit(run_guarded(main))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == exits.BUG
    assert "BrokenPipeError" in done.stderr


def test_the_command_line_has_this_handler() -> None:
    """It fails when it reads its arguments, of a kind that no command passes."""
    code = (
        "import runpy, sys; from retune.flows.cli import toplevel;"
        "toplevel.run_guarded.__code__ = (lambda main, stopped='': 99).__code__;"
        "sys.argv = ['retune', 'quiet', '{}'];"
        "runpy.run_module('retune.flows.cli.app', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 99, done.stderr
