"""In: the words of a command line. Out: arguments that several commands take, and what they name.

Always: one text of help for each.
"""

from pathlib import Path
from typing import Annotated

import typer

from retune.compiler import config
from retune.storage.place import Place, is_remote, local_folder

Network = Annotated[str, typer.Argument(help="A name listed by `retune networks`, or the path of an ONNX file.")]
Threads = Annotated[int | None, typer.Option(help="Threads the network will run on. Default: all cores.")]
TargetText = Annotated[
    str | None, typer.Option(help="Target text, e.g. 'llvm -mcpu=znver4'. Default: this machine.")
]
Shapes = Annotated[
    list[str] | None, typer.Option(help="Fix a dynamic input: NAME=1,3,224,224. May be given more than once.")
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="State folder: records, runs, results; or a URL such as s3://bucket/folder for the first two. "
        "Default: $RETUNE_HOME or ./.retune.",
    ),
]


def home_of(store: str | None) -> Place:
    """Where the records are that `--store` names, or the configured state folder."""
    return store if store and is_remote(store) else state_folder_of(store)


def state_folder_of(store: str | None) -> Path:
    """The state folder that `--store` names; the configured one where it names none."""
    folder = local_folder(store) if store and not is_remote(store) else None
    return config.load(flags={"home": folder}).home
