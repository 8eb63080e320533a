"""In: what is known of a run. Out: one HTML page that needs nothing else. Always: only `facts` reads files."""
