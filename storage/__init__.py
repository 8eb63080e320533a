"""Stores of measured trials and artifacts, as files that any tool can query. What is acknowledged is on disk."""
