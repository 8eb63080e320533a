"""The command `retune networks`: lists the zoo."""

from retune.compiler.frontend import zoo
from retune.flows.cli.commands.output import Json, Output, Quiet


def networks(as_json: Json = False, quiet: Quiet = False) -> None:
    """List the networks of the zoo."""
    output = Output(as_json, quiet)
    for name in zoo.NAMES:
        output.say(name, name=name)
