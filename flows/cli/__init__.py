"""The command line `retune`: its start, its commands, and the views of a run."""
