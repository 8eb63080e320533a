"""Building and timing on other machines."""
