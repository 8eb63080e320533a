"""The commands of `retune`, one module for each group.

A command writes through `retune.flows.cli.commands.output`, so that `--json` and `--quiet` work everywhere.
"""
