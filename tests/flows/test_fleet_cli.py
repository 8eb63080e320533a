"""`retune worker` and `retune pools`, up to the process that they turn into."""

from collections.abc import Callable
from pathlib import Path

import pytest

from retune.compiler.core.errors import StoreError
from retune.flows.cli.commands.fleet import pools, worker
from retune.flows.cli.commands.output import Output

COMMANDS = [worker, pools]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_cannot_be_made_is_one_sentence(command: Callable[..., None], folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(StoreError, match=r"cannot use .*file/state as state folder"):
        command(Output(), store=str(folder / "file" / "state"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_url_is_not_taken_for_the_name_of_a_folder(
    command: Callable[..., None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []
    monkeypatch.setattr("retune.flows.cli.launch.use_prefect", lambda *_: None)
    monkeypatch.setattr("retune.flows.cli.worker.main", lambda *arguments: begun.append(arguments))
    monkeypatch.setattr("retune.flows.cli.pools.main", lambda *arguments: begun.append(arguments))
    before = set(folder.iterdir())
    command(Output(), store="s3://bucket/folder")
    command(Output(), store=f"file://{folder}/named")
    assert len(begun) == 2
    assert {path.name for path in set(folder.iterdir()) - before} <= {"state", "named"}
