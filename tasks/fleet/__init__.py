"""Where `build` and `measure` run: this machine or a fleet."""
