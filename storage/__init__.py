"""In: measured trials. Out: files anyone can query. Always: what is acknowledged is on disk."""
