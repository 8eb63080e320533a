"""What a notebook shows: runs of the ledger as tables.

IPython is used where a kernel of it runs; it is never imported by this package.
"""

import sys
from datetime import UTC, datetime
from typing import Any

from retune.compiler.runtime.readable import html_table, milliseconds


def kernel_shell() -> Any:
    """The IPython shell of this process when a notebook's kernel runs it, else None."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    # The IPython of a terminal has a shell too, but no kernel, and shows no HTML.
    return shell if getattr(shell, "kernel", None) is not None else None


def register_tables() -> None:
    """Let notebooks show a run of the ledger as a table. The storage knows nothing of HTML, so its class has no method
    for that.
    """
    shell = kernel_shell()
    if shell is not None:
        # By name: the storage is not imported until something else does.
        shell.display_formatter.formatters["text/html"].for_type_by_name("retune.storage.runs", "RunInfo", run_table)


def run_table(run: Any) -> str:
    """A `RunInfo` as HTML."""
    known = run.summary or {}
    started = datetime.fromtimestamp(run.started, UTC).isoformat(sep=" ", timespec="seconds")
    rows = [("started", started), ("state", "complete" if run.is_complete else "unfinished")]
    rows += [("trials", str(known["trials"]))] if known.get("trials") is not None else []
    for field, label in (("untuned_seconds", "untuned, ms"), ("tuned_seconds", "tuned, ms")):
        rows += [(label, milliseconds(float(known[field])))] if known.get(field) is not None else []
    return html_table(run.run_id, rows)
