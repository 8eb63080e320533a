"""The command `retune doctor`: runs the checks of `retune.flows.doctor` and prints their findings."""

import sys
from dataclasses import asdict
from itertools import chain

import typer
from rich.console import Console

from retune.flows.cli import exits
from retune.flows.cli.commands.arguments import Store
from retune.flows.cli.commands.output import Mode, Output, console_on
from retune.flows.doctor import machine, services
from retune.flows.doctor.machine import Finding, Verdict

STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def doctor(output: Output, store: Store = None) -> None:
    """Check whether this machine is fit for tuning, and say what to do where it is not.

    The exit code is 1 when something fails; a warning is no failure.
    """
    # soft_wrap: advice is copied from the terminal, and a hard line break would cut commands in two.
    console = console_on(sys.stdout, soft_wrap=True)
    failed = False
    for finding in chain(machine.everything(), services.everything(store)):
        failed = failed or finding.verdict is Verdict.FAIL
        if output.mode is Mode.JSON:
            output.object(asdict(finding))
        elif output.is_for_people:
            _show(console, finding)
    if failed:
        raise typer.Exit(exits.WRONG)


def _show(console: Console, finding: Finding) -> None:
    console.print(f"{finding.verdict.value:<5}", style=STYLES[finding.verdict], end="")
    console.print(f"{finding.name:<13} {finding.found}")
    if finding.advice:
        console.print(f"{'':<18} → {finding.advice}")
