"""Registry of workloads at TVM's path; see `retune.compiler.schedule.workload_registry`."""

from retune.compiler.schedule.workload_registry import *  # noqa: F403 - the same names at another path
