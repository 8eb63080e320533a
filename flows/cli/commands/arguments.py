"""Arguments that several commands take, and what they name."""

from dataclasses import Field
from pathlib import Path
from typing import Annotated, Any

import typer

from retune.compiler.core import config
from retune.compiler.core.options import TuneOptions, flag_of, info_of, kinds_of
from retune.storage.store_url import Location, folder_of, is_remote

Network = Annotated[str, typer.Argument(help="A name listed by `retune networks`, or the path of an ONNX file.")]
Threads = Annotated[int | None, typer.Option(help="Threads the network will run on. Default: all cores.")]
TargetText = Annotated[str | None, typer.Option(help="Target text, e.g. 'llvm -mcpu=znver4'. Default: this machine.")]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        help="The shape of an input: NAME=1,3,224,224, or with ranges NAME=1..8,1..512. May be given more than once."
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="State folder: records, runs, training data, results; or a URL such as s3://bucket/folder for all but the "
        "results. Default: $RETUNE_HOME or ./.retune.",
    ),
]


def option_of(field: Field[object]) -> Any:
    """An option of a tuning run as typer has it."""
    kind, flag, default = kinds_of(TuneOptions)[field.name], f"--{flag_of(field)}", field.default
    meaning = info_of(field).meaning
    shown = "" if default is None else f" Default: {default if kind is not bool else 'yes' if default else 'no'}."
    names = f"{flag}/--no-{flag_of(field)}" if kind is bool else flag
    # None and not the default: only so retune.toml and the environment can be told from a flag that was given.
    return Annotated[kind | None, typer.Option(names, help=f"{meaning[:1].upper()}{meaning[1:]}.{shown}")]


def home_of(store: str | None) -> Location:
    """Where the records are that `--store` names, or the configured state folder."""
    return store if store and is_remote(store) else state_folder_of(store)


def state_folder_of(store: str | None) -> Path:
    """The state folder that `--store` names; the configured folder where it names none."""
    return config.load(flags={"home": folder_of(store)}).home
