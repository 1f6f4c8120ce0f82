"""`python -m attnlab`."""

from attnlab.cli import main

main()
