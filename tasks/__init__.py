"""In: plain values and handles. Out: one `@task` per verb of the pipeline.

Always: a task adds a name, retries and limits to one call below it.
"""
