"""What a notebook shows, with a fake IPython kernel."""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from retune import notebook, tuning
from retune.compiler import auto_scheduler, te
from retune.storage.runs import RunInfo, RunLedger


class FakeKernel:
    """The parts of IPython that are used: a shell with formatters, and `display` with a handle."""

    def __init__(self) -> None:
        self.formatters: dict[tuple[str, str], Callable[[Any], str]] = {}
        self.shown: list[str] = []
        formatter = SimpleNamespace(for_type_by_name=lambda *args: self.formatters.update({args[:2]: args[2]}))
        self.shell = SimpleNamespace(
            kernel=self, display_formatter=SimpleNamespace(formatters={"text/html": formatter})
        )
        self.modules = {"IPython": ModuleType("IPython"), "IPython.display": ModuleType("IPython.display")}
        vars(self.modules["IPython"])["get_ipython"] = lambda: self.shell
        vars(self.modules["IPython.display"])["display"] = self.display

    def display(self, shown: Any, *, display_id: bool) -> Any:
        assert display_id
        self.shown.append(shown._repr_html_())
        return SimpleNamespace(update=lambda again: self.shown.append(again._repr_html_()))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    fake = FakeKernel()
    for name, module in fake.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return fake


def _task(name: str, trials: int, best: float | None) -> dict[str, Any]:
    known = {"default_seconds": 2e-3, "best_seconds": best, "gflops": 12.34 if best else None}
    return {"name": name, "task_key": f"key of {name}", "weight": 3, "trials": trials, **known}


EVENTS: list[dict[str, Any]] = [
    {"event": "phase_started", "text": "reading the network"},
    {"event": "run_opened", "run_id": "R", "trials": 0, "tasks": [_task("a<b", 0, None), _task("dense", 0, None)]},
    {"event": "round_started", "round": 0, "task": "dense"},
    {
        "event": "round_done", "round": 0, "trials": 16, "latency": 5e-3, "latency_is_complete": False,
        "task": _task("dense", 16, 1e-3),
    },
    {"event": "phase_advanced", "done": 1, "total": 2},
    {"event": "report", "run_id": "R", "speedup": 1.75},
]  # fmt: skip


def test_a_tuning_run_shows_a_table_that_follows_its_events(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def started(_command: object) -> Iterator[Any]:
        lines = io.StringIO("".join(f"{json.dumps(event)}\n" for event in EVENTS))
        yield SimpleNamespace(stdout=lines, stderr=io.StringIO(), wait=lambda: 0)

    monkeypatch.setattr(tuning, "_started", started)
    assert tuning.run_tuning("mlp", [], progress=True)["run_id"] == "R"
    assert len(kernel.shown) == 5  # one for each event but for the detail
    opening, opened, begun, done, last = kernel.shown
    assert opening == "<p>reading the network, 0 trials, 0 tasks</p>"
    assert "<td>a&lt;b</td><td>3</td><td>0</td><td>2.00</td><td>-</td><td>-</td><td>-</td>" in opened
    assert "<th>dense</th>" in begun
    assert "<p>round 0, 16 trials, 2 tasks, network &gt; 5.00 ms</p>" in done
    assert "<td>dense</td><td>3</td><td>16</td><td>2.00</td><td>1.00</td><td>2.00</td><td>12.3</td>" in done
    assert "<p>tuned, 16 trials, 2 tasks, 1.75 times as fast as untuned</p>" in last
    kernel.shown.clear()
    tuning.run_tuning("mlp", [], progress=False)
    assert kernel.shown == []


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
