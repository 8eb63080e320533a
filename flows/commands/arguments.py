"""In: nothing. Out: arguments that several commands take. Always: one text of help for each."""

from typing import Annotated

import typer

Network = Annotated[str, typer.Argument(help="A name listed by `retune networks`, or the path of an ONNX file.")]
Threads = Annotated[int | None, typer.Option(help="Threads the network will run on. Default: all cores.")]
TargetText = Annotated[
    str | None, typer.Option(help="Target text, e.g. 'llvm -mcpu=znver4'. Default: this machine.")
]
Shapes = Annotated[
    list[str] | None, typer.Option(help="Fix a dynamic input: NAME=1,3,224,224. May be given more than once.")
]
