"""The Prefect server of a run."""
