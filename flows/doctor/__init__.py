"""In: this machine. Out: what is well, what is not, and what to do about it. Always: nothing is changed for good."""
