"""The command `retune config`: every setting, its value, and where the value comes from."""

from retune.compiler.core import config
from retune.compiler.core.settings import FILE
from retune.flows.cli.commands.arguments import Store
from retune.flows.cli.commands.output import Column, Output
from retune.storage.store_url import folder_of


def show_config(output: Output, store: Store = None) -> None:
    """Print every setting: its value, where that comes from, and what it means.

    Settings are read from retune.toml in the working directory (or the file that $RETUNE_CONFIG names), then from the
    environment, then from flags; the later wins.
    """
    rows = [
        {
            "name": setting.name,
            "value": setting.value if isinstance(setting.value, int | float | None) else str(setting.value),
            "source": setting.source,
            "variable": setting.variable,
            "meaning": setting.meaning,
        }
        for setting in config.explain(flags={"home": folder_of(store)})
    ]
    output.table(
        rows,
        (
            Column("setting", lambda row: row["name"], folds=False),
            Column("value", lambda row: row["value"]),
            Column("from", lambda row: row["source"]),
            Column("variable", lambda row: row["variable"], folds=False),
            Column("meaning", lambda row: row["meaning"]),
        ),
    )
    if not output.is_for_people:
        return
    # A mistyped variable has no effect and no error otherwise.
    for name, meant in config.strange_variables().items():
        output.say(f"{name} is set, but there is no such setting; the nearest is {meant}")
    output.say(f"A line such as `batch = 32` in ./{FILE} changes a default for this folder.")
