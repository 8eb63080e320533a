"""The flow that joins the small record files of a store. Runs may go on meanwhile."""

from prefect import flow, get_run_logger

from retune.compiler.core import config
from retune.storage.compaction import Compaction, Retention
from retune.tasks.store import compact_store


@flow(name="compact-records", flow_run_name="compact-records")
def compact_records(
    home: str | None = None, keep_best: int | None = None, keep_days: float | None = None
) -> Compaction:
    """Join the many small record files of each task in `home`, a folder or a URL (default: RETUNE_HOME or ./.retune).

    With `keep_best` or `keep_days`, or both, records go that are neither among so many fastest of their task nor
    younger than so many days; the best and those of unfinished runs always stay.
    Raises: StoreError, OptionError.
    """
    done = compact_store(home or str(config.load().home), Retention.of(keep_best, keep_days))
    get_run_logger().info("%d files with %d records became %d", done.files_before, done.rows, done.files_after)
    return done
