"""Default schedules: fast to derive and correct, without search or measurement."""
