"""The command `retune networks`: lists the zoo."""

from retune.compiler.frontend import zoo
from retune.flows.cli.commands.output import Output


def networks(output: Output) -> None:
    """List the networks of the zoo."""
    for name in zoo.NAMES:
        output.say(name, name=name)
