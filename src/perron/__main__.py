"""``python -m perron`` is the command ``perron``."""

from perron.cli import main

main()
