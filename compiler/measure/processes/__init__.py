"""Worker processes that build and time programs."""
