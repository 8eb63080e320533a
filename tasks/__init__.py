"""Prefect tasks: a task for each verb of the pipeline.

A task adds a name, retries and limits to a call of the compiler or the store.
"""
