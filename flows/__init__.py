"""In: plain parameters. Out: order and data flow of the pipeline, one `@flow` a file.

Always: no arithmetic, no printing outside the command line.
"""
