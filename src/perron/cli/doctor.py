"""``perron doctor``: whether perron works on this machine."""

from __future__ import annotations

from typing import Annotated

from perron.cli.app import print_lines, print_table, waiting, write_json
from perron.cli.options import Json, flag
from perron.errors import FailedError


def doctor(
    no_test: Annotated[bool, flag("--no-test", "Leave out the self-test, which takes some seconds.")] = False,
    as_json: Json = False,
) -> None:
    """Say what is installed, what is missing, and whether it works.

    Versions, extras and what they would give, cores, memory, disk, ports and datasets; then a self-test: a simulation, and a
    training with two processes that must give the same numbers. What is missing is optional; a problem is not, and the exit code
    is then 3.

    perron doctor
    perron doctor --no-test
    perron doctor --json
    """
    from perron.doctor import Verdict, examine, test

    with waiting("looking at the installation"):
        checks = list(examine())
    if not no_test:
        with waiting("self-test: a simulation, then a training with two processes"):
            checks += test()
    problems = [check for check in checks if check.verdict is Verdict.PROBLEM]
    missing = [check for check in checks if check.verdict is Verdict.MISSING]
    if as_json:
        write_json({"works": not problems, "checks": [check._asdict() for check in checks]})
    else:
        print_table(("", "verdict", "found", "what to do"), ((c.name, c.verdict, c.found, c.remedy) for c in checks))
        print_lines(f"{len(checks)} checks, {len(problems)} problems, {len(missing)} optional things missing.")
    if problems:
        raise FailedError(f"Problems with {', '.join(check.name for check in problems)}: see the last column.")
