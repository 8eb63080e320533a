"""The rounds of a run, in order; a round is one line, durable on return.

Lines are JSON objects in `root/runs/RUN/rounds.jsonl`, which DuckDB and others read directly; the view `rounds` of
`retune.storage.query` has the rounds of all runs. A resumed run may repeat a round: the last line counts. In an object
store every line is an object, since objects do not grow.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from retune.compiler.core.errors import CorruptRecordError
from retune.storage.blob_store import BlobStore
from retune.storage.documents import ROUND, parse_document
from retune.storage.store_url import open_blob_store

ROUNDS = "rounds.jsonl"

Field = str | int | float | None


def append_round(root: Path | str, run_id: str, row: Mapping[str, Field]) -> None:
    """Add the line of one round; `row` must have its number as `round`.

    Raises: StoreError when it cannot be written.
    """
    open_blob_store(root).add_line(_name(run_id), json.dumps({"run_id": run_id, **row}).encode())


def rounds_of(root: Path | str, run_id: str) -> list[dict[str, Field]]:
    """The rounds of a run, by number, without a cut-off line."""
    return _rounds(open_blob_store(root), _name(run_id))


def all_rounds(blobs: BlobStore) -> list[dict[str, Field]]:
    names = {name[: name.index(ROUNDS) + len(ROUNDS)] for name in blobs.files("runs") if f"/{ROUNDS}" in name}
    return [row for name in sorted(names) for row in _rounds(blobs, name)]


def _rounds(blobs: BlobStore, name: str) -> list[dict[str, Field]]:
    rounds: dict[int, dict[str, Field]] = {}
    try:
        lines = blobs.lines(name)
    except CorruptRecordError as error:
        blobs.quarantine(name, error)
        return []
    for line in lines:
        try:
            row = parse_document(line, ROUND, blobs.where(name))
        # The last line of a killed writer: the round is repeated when the run is resumed.
        except CorruptRecordError:
            continue
        if isinstance(number := row.get("round"), int):
            # A resumed run may repeat a round: the last line counts.
            rounds[number] = row
    return [rounds[number] for number in sorted(rounds)]


def _name(run_id: str) -> str:
    return f"runs/{run_id}/{ROUNDS}"
