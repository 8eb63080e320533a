"""What programs end with: the exit code tells a user's mistake, a server that is gone and a fault of ours apart."""

import os
import subprocess
import sys

import pytest

from compiler.errors import OptionError, ServerError
from flows import exits
from flows.toplevel import guarded

OTHERS = ("session", "worker", "pools")
"""Programs that import Prefect, which takes seconds."""


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

    assert guarded(main, "stopped here") == code
    assert capsys.readouterr().err == said


def test_an_unknown_exception_is_a_fault_of_ours_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise KeyError("lost", "sftp://me:secret@host/store")

    assert guarded(main) == exits.BUG
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "secret" not in said
    assert said.splitlines()[-1].startswith("retune: a fault of Retune itself, please report it: KeyError")


def test_a_program_whose_reader_has_seen_enough_ends_well() -> None:
    code = "import sys\nfrom flows.toplevel import guarded\nsys.exit(guarded(lambda: print('x' * 10**6)))"
    receiver, sender = os.pipe()
    os.close(receiver)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=sender, stderr=subprocess.PIPE, timeout=60, check=False
        )
    finally:
        os.close(sender)
    assert (done.returncode, done.stderr) == (exits.OK, b"")


@pytest.mark.parametrize("module", ["cli", *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)])
def test_every_program_has_this_handler(module: str) -> None:
    """Each fails when it reads its arguments, of a kind that no command passes."""
    code = (
        "import runpy, sys; from flows import toplevel;"
        "toplevel.guarded.__code__ = (lambda main, stopped='': 99).__code__;"
        "sys.argv = ['retune', 'quiet', '{}'];"
        f"runpy.run_module('flows.{module}', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 99, done.stderr
