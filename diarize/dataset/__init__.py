"""Data sets: what a manifest says, fetching what it names, and recordings with references ready for a benchmark."""
