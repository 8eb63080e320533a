"""Prefect flows: the order and the data flow of the pipeline, one flow a module, and the command line.

Flows compute nothing themselves; only the command line prints.
"""
