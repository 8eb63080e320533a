"""SQL views over the records, for analysts. A view reads only views defined before it.

The base views, which `retune.storage.query` makes from a state folder, are `files` (every row of every record file),
`rounds` (one row per round) and `ledger` (the run ledger).
"""

from dataclasses import dataclass

PLACE = "task_key, target, device, threads"
"""Times are comparable within these columns."""


@dataclass(frozen=True, slots=True)
class View:
    """A view: its name, a description of its rows, and its SQL query."""

    name: str
    doc: str
    sql: str


# A retried append and an ongoing compaction leave a record in two files: one row of each id counts.
RECORDS = View(
    "records",
    "every trial once; `costs` of a trial at several shapes are those of one of them, see `shapes`",
    """
    SELECT * FROM files WHERE NOT starts_with(mutation, 'confirmed')
    QUALIFY row_number() OVER (PARTITION BY record_id ORDER BY timestamp, sizes) = 1
    """,
)

SHAPES = View(
    "shapes",
    "a trial of a task with symbolic extents at one shape: `sizes`, `weight`, and `seconds` with these sizes",
    """
    SELECT * REPLACE (list_min(costs) AS seconds) FROM files
    WHERE sizes <> '' AND NOT starts_with(mutation, 'confirmed')
    QUALIFY row_number() OVER (PARTITION BY record_id, sizes ORDER BY timestamp) = 1
    """,
)

CONFIRMATIONS = View(
    "confirmations",
    "a program that a run timed again at its end, and that serves since then; `parent_id` is its record",
    """
    SELECT * FROM files WHERE starts_with(mutation, 'confirmed')
    QUALIFY row_number() OVER (PARTITION BY record_id ORDER BY timestamp, sizes) = 1
    """,
)

BEST = View(
    "best",
    "the fastest successful trial of a task on a target, a device and a number of threads",
    f"""
    WITH fastest AS (
      SELECT {PLACE}, min(seconds) AS seconds FROM files WHERE seconds IS NOT NULL GROUP BY ALL
    )
    SELECT DISTINCT ON ({PLACE}) files.*
    FROM files JOIN fastest USING ({PLACE}, seconds)
    ORDER BY {PLACE}, timestamp, record_id
    """,
)

RUNS = View(
    "runs",
    "a run: its request and its result",
    """
    SELECT run_id,
      "describe" ->> 'network' AS network,
      "describe" ->> 'target' AS target,
      "describe" ->> 'device' AS device,
      try_cast("describe" ->> 'threads' AS BIGINT) AS threads,
      coalesce("describe" ->> 'precision', 'float32') AS precision,
      try_cast("describe" ->> 'seed' AS BIGINT) AS seed,
      to_timestamp(started) AS started,
      to_timestamp(completed) AS completed,
      len(resumed) AS resumed,
      try_cast(summary ->> 'trials' AS BIGINT) AS trials,
      try_cast(summary ->> 'elapsed' AS DOUBLE) AS elapsed,
      try_cast(summary ->> 'untuned_seconds' AS DOUBLE) AS untuned_seconds,
      try_cast(summary ->> 'tuned_seconds' AS DOUBLE) AS tuned_seconds,
      try_cast(summary ->> 'is_right' AS BOOLEAN) AS is_right
    FROM ledger
    """,
)

LAYERS = View(
    "layers",
    "a layer of a run with `--precision`: its precision, its seconds in float32 and in that, and its error alone",
    """
    SELECT run_id, "describe" ->> 'network' AS network,
      layer ->> 'name' AS layer,
      layer ->> 'op' AS op,
      layer ->> 'precision' AS precision,
      try_cast(layer ->> 'float32_seconds' AS DOUBLE) AS float32_seconds,
      try_cast(layer ->> 'seconds' AS DOUBLE) AS seconds,
      try_cast(layer ->> 'error' AS DOUBLE) AS error
    FROM (SELECT run_id, "describe", unnest(from_json("precision" -> 'layers', '["JSON"]')) AS layer FROM ledger)
    """,
)

PROGRESS = View(
    "progress",
    "a trial of a task in a run, numbered from 1, with the best so far",
    f"""
    SELECT run_id, network, task_name, {PLACE}, record_id, round, elapsed, timestamp, status_name, mutation, seconds,
      row_number() OVER course AS trial,
      min(seconds) OVER (course ROWS UNBOUNDED PRECEDING) AS best_seconds
    FROM records
    WINDOW course AS (PARTITION BY run_id, {PLACE} ORDER BY round, timestamp, record_id)
    """,
)

# A failure has speed 0, as the cost model learns it.
CALIBRATION = View(
    "calibration",
    "a trial that the cost model scored: predicted and measured speed, and both ranks within its round",
    f"""
    SELECT run_id, network, task_name, {PLACE}, record_id, round, timestamp, status_name, predicted, seconds,
      coalesce(min(seconds) OVER (PARTITION BY run_id, {PLACE}) / seconds, 0) AS speed,
      rank() OVER (PARTITION BY run_id, {PLACE}, round ORDER BY predicted DESC) AS predicted_rank,
      rank() OVER (PARTITION BY run_id, {PLACE}, round ORDER BY seconds NULLS LAST) AS measured_rank
    FROM records WHERE predicted IS NOT NULL AND isfinite(predicted)
    """,
)

FAILURES = View(
    "failures",
    "a cause of failed trials of a task: how many, how long, when last, one text in full",
    r"""
    WITH failed AS (
      SELECT *, regexp_extract(error, '^\s*([^\n]*)', 1) AS said FROM records WHERE status <> 0
    )
    SELECT status_name,
      regexp_replace(said, '0x[0-9a-f]+|[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?', '#', 'g') AS cause,
      run_id, network, task_name, device,
      count(*) AS trials,
      sum(build_seconds + run_seconds) AS spent_seconds,
      max(timestamp) AS latest,
      arg_max(error, timestamp) AS example
    FROM failed GROUP BY ALL
    """,
)

# Programs timed again measure the machine, not the search: their ratio to the first time is its drift. A confirmation
# of an untested candidate's own record is its first time, so it is left out.
DRIFT = View(
    "drift",
    "a day of a device: how busy it was, and how programs timed again compare with their first time",
    f"""
    WITH timed AS (
      SELECT *, first_value(seconds) OVER again AS first_seconds, row_number() OVER again AS occasion
      FROM records WHERE seconds IS NOT NULL AND censored IS NOT TRUE
      WINDOW again AS (PARTITION BY {PLACE}, steps ORDER BY timestamp, record_id)
    ), confirmed AS (
      SELECT records.device, records.threads, later.timestamp, later.seconds / records.seconds AS ratio
      FROM confirmations AS later JOIN records ON records.record_id = later.parent_id
      WHERE NOT (records.run_id = later.run_id AND starts_with(records.mutation, 'guess'))
    ), ratios AS (
      SELECT device, threads, timestamp, seconds / first_seconds AS ratio FROM timed WHERE occasion > 1
      UNION ALL SELECT * FROM confirmed
    ), again AS (
      SELECT device, threads, timestamp::DATE AS day, count(*) AS timed_again, median(ratio) AS slowdown
      FROM ratios GROUP BY ALL
    ), days AS (
      SELECT device, threads, timestamp::DATE AS day, count(*) AS trials, median(contention) AS contention,
        count(*) FILTER (records.contention > 0.05) / count(*) AS busy_share
      FROM records GROUP BY ALL
    )
    SELECT * FROM days FULL JOIN again USING (device, threads, day)
    """,
)

GAIN = View(
    "gain",
    "a round: by which share it cut the network's estimated latency, in all and per minute",
    """
    WITH steps AS (
      SELECT run_id, round, task_name, trials, elapsed, latency,
        lag(latency) OVER course AS latency_before,
        elapsed - coalesce(lag(elapsed) OVER course, 0) AS seconds_spent
      FROM rounds WINDOW course AS (PARTITION BY run_id ORDER BY round)
    )
    SELECT *, 1 - latency / latency_before AS gained,
      (1 - latency / latency_before) * 60 / nullif(seconds_spent, 0) AS gained_per_minute
    FROM steps
    """,
)

VIEWS = (RECORDS, SHAPES, CONFIRMATIONS, BEST, RUNS, LAYERS, PROGRESS, CALIBRATION, FAILURES, DRIFT, GAIN)
"""In the order of their creation."""
