"""Benchmarks: every file of a data set through one or more systems, timed in their own processes, then scored."""
