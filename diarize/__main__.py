"""`python -m diarize`: the command line."""

from .cli.main import main

main()
