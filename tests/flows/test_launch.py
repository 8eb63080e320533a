"""Signals in the moments in which a program has not begun, or Prefect has set its own handlers."""

import signal
import subprocess
import sys

import pytest

EXIT_CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


def ended(code: str, *arguments: object) -> tuple[int, list[str]]:
    """The exit code of a script, and the lines it wrote to stderr."""
    command = [sys.executable, "-c", f"import os, signal, sys, time, warnings\nfrom flows.cli import launch\n{code}"]
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, [line for line in done.stderr.splitlines() if line]


@pytest.mark.parametrize("module", ["typer", "retune.flows.cli.commands.settings"])
@pytest.mark.parametrize(("signum", "code"), EXIT_CODES)
def test_a_signal_during_imports_is_one_sentence(module: str, signum: int, code: int) -> None:
    script = """
class Signaling:
    def find_spec(self, name, path, target=None):
        if name == wanted:
            os.kill(os.getpid(), int(number))

_, wanted, number = sys.argv
sys.meta_path.insert(0, Signaling())
sys.argv[1:] = ["config"]
launch.main()
"""
    assert ended(script, module, signum) == (code, ["retune: stopped"])


@pytest.mark.parametrize(("signum", "code"), EXIT_CODES)
def test_a_signal_while_prefect_is_imported_gets_the_sentence_of_the_command(signum: int, code: int) -> None:
    script = """
class Signaling:
    def find_spec(self, name, path, target=None):
        if name == "prefect":
            os.kill(os.getpid(), number)

number = int(sys.argv[1])
sys.meta_path.insert(0, Signaling())
launch.use_prefect({}, "stopped in the middle")
"""
    assert ended(script, signum) == (code, ["retune: stopped in the middle"])


@pytest.mark.parametrize(("signum", "code"), EXIT_CODES)
def test_a_run_ends_though_prefect_has_set_its_own_handler(signum: int, code: int) -> None:
    script = """
launch.end_on_signals_within(0.0, launch.RESUMABLE)
number = int(sys.argv[1])
signal.signal(number, lambda *_: None)
os.kill(os.getpid(), number)
time.sleep(50)
"""
    (found, (line,)) = ended(script, signum)
    assert found == code
    assert "the same command goes on" in line


def test_an_ignored_signal_stays_ignored() -> None:
    script = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
launch.end_on_signals()
os.kill(os.getpid(), signal.SIGINT)
"""
    assert ended(script) == (0, [])


def test_a_signal_to_a_forked_child_does_not_end_its_parent() -> None:
    script = """
launch.end_on_signals_within(0.0, launch.RESUMABLE)
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork beside threads
child = os.fork()
if not child:
    signal.signal(signal.SIGTERM, lambda *_: time.sleep(0.5) or os._exit(5))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(50)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert ended(script) == (5, [])
