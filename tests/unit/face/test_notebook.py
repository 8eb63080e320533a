"""What a notebook shows, with a fake IPython kernel."""

import io
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from retune import notebook, tuning
from retune.compiler import auto_scheduler, te
from retune.storage.runs import RunInfo, RunLedger


class FakeKernel:
    """The parts of IPython that are used: a shell with formatters."""

    def __init__(self) -> None:
        self.formatters: dict[tuple[str, str], Callable[[Any], str]] = {}
        formatter = SimpleNamespace(for_type_by_name=lambda *args: self.formatters.update({args[:2]: args[2]}))
        self.shell = SimpleNamespace(
            kernel=self, display_formatter=SimpleNamespace(formatters={"text/html": formatter})
        )
        self.modules = {"IPython": ModuleType("IPython")}
        vars(self.modules["IPython"])["get_ipython"] = lambda: self.shell


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    fake = FakeKernel()
    for name, module in fake.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return fake


@pytest.mark.parametrize("progress", [True, False])
@pytest.mark.usefixtures("kernel")
def test_a_tuning_run_writes_its_lines_into_the_cell(
    progress: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[Sequence[str]] = []

    @contextmanager
    def started(command: Sequence[str], stdout: object) -> Iterator[Any]:
        commands.append(command)
        assert stdout == subprocess.PIPE
        lines = "" if "--quiet" in command else "round 1: dense\n"
        yield SimpleNamespace(stdout=io.StringIO(lines), stderr=io.StringIO(), wait=lambda: 0)

    monkeypatch.setattr(tuning, "_start", started)
    tuning.run_tuning("mlp", ["--trials", "4"], progress=progress)
    assert ("--quiet" in commands[0]) == (not progress)
    assert capsys.readouterr().out == ("round 1: dense\n" if progress else "")


def test_a_terminal_of_ipython_is_no_notebook(kernel: FakeKernel) -> None:
    assert notebook.kernel_shell() is kernel.shell
    del kernel.shell.kernel
    assert notebook.kernel_shell() is None


def test_runs_of_the_ledger_are_tables(kernel: FakeKernel, tmp_path: Path) -> None:
    notebook.register_tables()
    shown = kernel.formatters[RunInfo.__module__, RunInfo.__qualname__]
    ledger = RunLedger(tmp_path)
    with ledger.open_or_resume("f", {}) as run:
        assert "<td>unfinished</td>" in shown(run.info)
        done = ledger.complete(run.run_id, {"trials": 64, "untuned_seconds": 2e-3, "tuned_seconds": 1e-3})
    assert f"<b>{run.run_id}</b>" in shown(done)
    for cell in ("complete", "64", "2.00", "1.00"):
        assert f"<td>{cell}</td>" in shown(done)


IPYTHON = """
names = []
class Shell:
    kernel = formatters = display_formatter = property(lambda self: self)
    def __getitem__(self, kind): return self
    def for_type_by_name(self, *args): names.append(args[:2])
def get_ipython(): return Shell()
"""


def test_importing_retune_in_a_kernel_registers_the_tables(tmp_path: Path) -> None:
    (tmp_path / "IPython.py").write_text(IPYTHON)
    script = "import sys; sys.path.insert(0, sys.argv[1]); import IPython, retune; print(IPython.names)"
    command = [sys.executable, "-c", f"{script}; print(sorted({{'prefect', 'xgboost'}} & set(sys.modules)))"]
    done = subprocess.run([*command, tmp_path], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "[('retune.storage.runs', 'RunInfo')]\n[]\n", done.stderr


def test_a_schedule_is_shown_as_its_loops() -> None:
    a = te.placeholder((4,), name="a")
    state = auto_scheduler.ComputeDAG([a, te.compute((4,), lambda i: a[i] + 1.0, "b")]).get_init_state()
    assert state._repr_html_().startswith("<pre>")
    assert "for i (0,4)" in state._repr_html_()
