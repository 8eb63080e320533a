"""In: a state folder. Out: its record files joined. Always: runs may go on meanwhile."""

from prefect import flow, get_run_logger

from compiler import config
from storage.compaction import Compaction
from tasks.store import compact_store


@flow(name="compact-records", flow_run_name="compact-records")
def compact_records(home: str | None = None) -> Compaction:
    """Join the many small record files of each task in `home` (default: RETUNE_HOME or ./.retune).

    Raises: StoreError.
    """
    done = compact_store(home or str(config.load().home))
    get_run_logger().info("%d files with %d records became %d", done.files_before, done.rows, done.files_after)
    return done
