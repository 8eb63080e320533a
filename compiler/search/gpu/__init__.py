"""The space of GPU programs, and which of them are worth running."""
