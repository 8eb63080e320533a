"""In: options. Out: what a command of `retune` does, one module for every group of commands.

Always: a command says what it has to say through `retune.flows.commands.output`, so `--json` and `--quiet` work
everywhere.
"""
