"""The command `retune explain`: what a kernel computes, how, what limits it, and how it was found."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.readable import milliseconds
from retune.compiler.tune.explain import STAGES, Explanation
from retune.flows.cli.commands.arguments import Shapes, Store, TargetText, Threads, home_of
from retune.flows.cli.commands.output import Output
from retune.flows.cli.kernel_explainer import KernelExplainer
from retune.storage.files import put
from retune.tasks.report.kernel_page import kernel_page


def explain(
    output: Output,
    source: Annotated[str, typer.Argument(help="A network as for `retune compile`, a run's id, or `latest`.")],
    kernel: Annotated[str | None, typer.Argument(help="A kernel, or how its name begins. Default: list them.")] = None,
    stage: Annotated[
        str | None, typer.Option(help=f"Print only this stage: {', '.join(STAGES)}.", metavar="STAGE")
    ] = None,
    slowest: Annotated[
        int | None, typer.Option(min=1, help="The kernels that take most of the time.", metavar="N")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the page as HTML into this file.")] = None,
    threads: Threads = None,
    target: TargetText = None,
    shape: Shapes = None,
    store: Store = None,
) -> None:
    """Explain a kernel: its computation, schedule, every pass, code, hot loop, limit and search."""
    if kernel is not None and slowest is not None:
        raise OptionError("name a kernel, or ask for the slowest ones, not both")
    if stage is not None and stage not in STAGES:
        raise OptionError(f"there is no stage {stage!r}; there are {', '.join(STAGES)}")
    if kernel is None and slowest is None and (stage is not None or html is not None):
        raise OptionError("--stage and --html are of kernels: name one, or ask for the --slowest")
    explainer = KernelExplainer.of(source, home_of(store), threads, target, tuple(shape or ()))
    if kernel is None and slowest is None:
        for row in explainer.rows():
            text = f"{row.weight:3d} x {row.name}  {milliseconds(row.best_seconds)} ms  {row.origin_text}"
            output.say(text, kernel=row.name, uses=row.weight, seconds=row.best_seconds, origin_text=row.origin_text)
        return
    names = explainer.find(kernel) if kernel is not None else explainer.slowest(slowest or 1)
    explained = [explainer.explain(name) for name in names]
    if html is not None:
        put({html: kernel_page(explained).encode()})
        output.say(f"{html}", page=html)
    elif stage is not None:
        _say_stages(output, explained, stage)
    else:
        for kernel_text in explained:
            output.say(
                str(kernel_text),
                kernel=kernel_text.name,
                seconds=kernel_text.seconds,
                limit=kernel_text.limit,
                origin_text=kernel_text.origin_text,
            )


def _say_stages(output: Output, explained: Sequence[Explanation], stage: str) -> None:
    for entry in explained:
        text = entry.stage(stage)
        output.say(
            text.rstrip() if len(explained) == 1 else f"== {entry.name}\n{text.rstrip()}", kernel=entry.name, text=text
        )
