"""``python -m perron`` is the command line."""

from perron.cli.main import main

main()
