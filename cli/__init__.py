"""Command line: parse, call one function of the library, print. Nothing in the library imports it."""
