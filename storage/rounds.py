"""In: what came of a round. Out: all rounds of a run, in order. Always: a round is one line, on disk on return.

Lines are JSON objects in `root/runs/RUN/rounds.jsonl`, which DuckDB and others read as they are; `storage.query` shows
those of all runs as the view `rounds`. A run that is resumed may write a round again: the last line counts.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from compiler.errors import StoreError
from storage.files import make_folder

ROUNDS = "rounds.jsonl"

Field = str | int | float | None


def append_round(root: Path | str, run_id: str, row: Mapping[str, Field]) -> None:
    """Add the line of one round; `row` must have its number as `round`.

    Raises: StoreError when it cannot be written.
    """
    path = _path(root, run_id)
    line = json.dumps({"run_id": run_id, **row}) + "\n"
    try:
        make_folder(path.parent)
        with path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error


def rounds_of(root: Path | str, run_id: str) -> list[dict[str, Field]]:
    """The rounds of a run, by number; a line that was cut off is left out."""
    path = _path(root, run_id)
    found: dict[int, dict[str, Field]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
            found[int(row["round"])] = row
        except (ValueError, KeyError, TypeError):
            continue
    return [found[number] for number in sorted(found)]


def _path(root: Path | str, run_id: str) -> Path:
    return Path(root).absolute() / "runs" / run_id / ROUNDS
