"""From a task to a kernel, from a network to a file."""
