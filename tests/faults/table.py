"""The faults that perron must survive: a row for each, the tests that inject it, and the table of what was measured.

Each row is tested by functions named ``test_f09_...`` in this directory, marked ``fault``. They say what they measured:

    def test_f09_a_truncated_checkpoint(row):
        ...
        row.measured("refused 24 of 24, fell back 24 of 24", trials=24)

`scripts/faults` runs all of them and writes docs/engine/faults.md; CI runs those of `QUICK` with few trials. What was measured is
kept in docs/engine/faults.jsonl with its date, so that single rows can be measured again, as by `scripts/faults -k f09`.
"""

import json
import os
import platform
import sys
from datetime import date
from pathlib import Path
from typing import NamedTuple

import pytest

FULL = os.environ.get("PERRON_FAULTS") == "full"
RECORDS = os.environ.get("PERRON_FAULTS_RECORDS")  # a file to which every test adds a line of JSON


NOT_YET = "NOT MEASURED"
long = pytest.mark.skipif(not FULL, reason="takes long: PERRON_FAULTS=full")


class Fault(NamedTuple):
    """What goes wrong, how it is brought about, and what must happen then."""

    name: str
    injection: str
    bar: str


ROWS = {
    1: Fault("some of the nodes are killed", "SIGKILL 1, 2, 3 or 4 of 4 processes at a random step, 20 times each",
             "the others stop within 2 s and name who died and how; resumed bit for bit; no process left over"),
    2: Fault("node 0, the launcher or its machine goes", "SIGKILL, 10 times each; the cable between two machines is cut",
             "as F1; without their launcher nodes end within 5 s; without the machine that hosts the store, within 45 s"),
    3: Fault("nodes die again and again", "`perron launch --restarts`: a kill every 20 to 60 steps, 10 in one run",
             "finishes bit for bit; recovery 6 s in the median, 15 s at most"),
    4: Fault("a node hangs", "SIGSTOP, timeout 5 s, 10 times",
             "every neighbour notices within 6 s and names node and edge; all end; resumed bit for bit"),
    5: Fault("a node pauses", "SIGSTOP, then SIGCONT after half of the timeout, 10 times", "nothing happens: same bits"),
    6: Fault("a slow node", "10 times slower than the others",
             "no failure, same result; the report names the straggler and who waits for it how long"),
    7: Fault("links lose messages", "simulated: 0, 10, 30, 50 % lost, 16 nodes, 4,000 steps, 5 seeds",
             "Robust Push-Pull: error and invariant <= 1e-10; plain Push-Pull warns"),
    8: Fault("links delay, repeat and reorder messages", "simulated: delays of up to 1, 5, 20 steps, with losses and repeats",
             "as F7"),
    9: Fault("a truncated checkpoint", "cut at 0, 0.1, 50, 99.9 % and at every 512 bytes of the manifest",
             "refused with its name, expected and found size; the one before is used, and that is said"),
    10: Fault("bit rot in a checkpoint", "200 single bits flipped in data, header and manifest", "noticed 200 of 200 times"),
    11: Fault("killed while saving", "SIGKILL of a process that saves all the time, 40 times",
              "the latest is readable 40 of 40 times; left-over files are gone after the next start"),
    12: Fault("power cut", "every prefix of the recorded writes, renames and syncs",
              "a valid checkpoint at every one; file synced, renamed, directory synced, in this order"),
    13: Fault("full disk", "a file system of 300 kB, /dev/full, a limit on file size",
              "error with 'no space', path and size; the old checkpoint is whole; no partial file"),
    14: Fault("no place to write; signals", "directory read-only, or a file in its place; SIGTERM, SIGINT once and twice",
              "refused before training; a signal saves and ends with 143 or 130 within 5 s; a second one at once"),
    15: Fault("a gradient that is not finite", "NaN or infinity on one node at step k, 5 times",
              "stops at step k, no other node is reached; node, step and tensor named; `skip` counts"),
    16: Fault("nodes that were given different things", "each field of the configuration, once, on one node",
              "refused before the first tensor within 5 s: field, both values, both nodes"),
    17: Fault("a wrong graph", "not connected, no self-loops, negative, NaN, sums off, wrong size, isolated, asymmetric",
              "all refused with node, edge or row and the value; components listed"),
    18: Fault("a malformed graph file", "XML bombs and entities, cut short, letters, missing columns, NaN, UTF-16, empty, ...",
              "refused with file, line and token"),
    19: Fault("malformed study files, tables and commands", "2,000 random ones each",
              "never a bare traceback; field, value and what is allowed"),
    20: Fault("huge networks", "1e5 nodes with 5e5 edges; 1e9 nodes in a study",
              "1e5: ready within 2 s and 1 GB; 1e9: refused with the memory it would need"),
    21: Fault("an unauthorized client connects", "from another network; idle connections, garbage, a wrong secret",
              "nothing listens beyond loopback; refused, logged, harmless; a flood ends in a clear error"),
    22: Fault("a hostile checkpoint", "pickles, ../, absolute paths, symlinks, a header of 1 TB, bombs, duplicate names",
              "nothing runs, nothing is written outside, less than 100 MB more memory, clear refusal"),
    23: Fault("hostile text in names", "<script>, ../, new lines in names of runs", "escaped; files stay inside"),
    24: Fault("runs of a study die", "one killed, one hung, one stopped of 40", "37 done, exactly 3 named; again: only those 3"),
    25: Fault("two in one directory", "the same study or training started twice",
              "the second is refused, with pid and host of the first"),
    26: Fault("the clock jumps", "back by an hour, and forth", "no time-out fires"),
    27: Fault("a long time of faults", "30 minutes of kills and stops every 5 to 15 s (`scripts/soak`)",
              ">= 100 faults, same bits, memory +< 5 %, files constant, no gap > 60 s"),
    28: Fault("weak dependencies and code", "audit of pinned packages; linter's security rules; search for dangerous calls (F22)",
              "none known"),
    29: Fault("a node dies at the end of an elastic training", "SIGKILL in the final average, after it, in `close`, in `finish`",
              "it is not restarted, or ends saying that the training has finished; the results stay; code 0"),
    30: Fault("checkpoints that not all nodes can use", "a disk that is not mounted, a later format, a first save cut short",
              "refused: who can use which steps, why others cannot, `fresh=True`; only own files are removed"),
    31: Fault("a study in a folder with other results",
              "results of other code; killed, Ctrl-C, full disk at each operation on a file; no Ray; newer formats; read-only",
              "no row is lost: a table is replaced only by one with its runs, others are kept, shown, and said"),
    32: Fault("only one node has the model, and pauses", "3 nodes: one stopped for 5 s, two killed and restarted",
              "the newcomers wait for it; training continues with its model"),
    33: Fault("one direction of one link is cut", "four network namespaces on a switch, one sends to a wrong address",
              "pair and direction are named; all continue without this pair"),
    34: Fault("numbers between nodes that are not finite", "NaN or infinity in a message before a save, a state, a checkpoint",
              "named with sender, edge and step; not saved, not loaded; resumed bit for bit from the one before"),
    35: Fault("an elastic training diverges", "learning rate 20 times too large",
              "all nodes end with the reason and an error code; no restart"),
    36: Fault("the nodes of the launcher with the store die", "one of four killed there, then another one elsewhere",
              "the launcher stays; the second death is recovered from"),
    37: Fault("the store stalls", "SIGSTOP of the launcher for 4 and 9 s", "no member is lost"),
    38: Fault("the name of the store stops resolving", "the line in /etc/hosts is removed, then a node is killed",
              "recovered from, as with the name"),
    39: Fault("the terminal is closed, or SIGQUIT", "a pseudo-terminal that hangs up; SIGHUP and SIGQUIT to the launcher",
              "as SIGTERM: all nodes save after the same step"),
    40: Fault("a study on Ray, seen from the network", "listening sockets counted; a client without the token; an old Ray",
              "all on the loopback interface; refused"),
    41: Fault("text in files that steers other programs", "escape sequences in titles, names, errors; formulas in labels",
              "nothing but text reaches the terminal; spreadsheets see text, numbers stay numbers"),
    42: Fault("foreign files and odd addresses", "`runs` is a link; foreign *.part files; ports of 99999; mirrors without https",
              "refused or left alone, in one line"),
    43: Fault("fewer nodes are left than --min-nodes", "SIGKILL of one of 4, with and without restarts",
              "saved and ended at once, unless a restarted node can be waited for; no step with fewer"),
    44: Fault("which node failed first, and why?", "an exception on one node, SIGKILL; also under torchrun",
              "the last line names node, step and error; a file with the traceback for each node"),
    45: Fault("a study's folder is used while it runs", "`perron report`, `study show` and a second `study run`, again and again",
              "each shows what is there, or says why not; the results are those of an undisturbed study"),
    46: Fault("read-only folders, and umask 077", "a file system mounted read-only under results; a study and a training",
              "shown, or refused in one line; files are private and are read again"),
    47: Fault("out of memory", "a cgroup with less memory than the nodes need",
              "the killed node is named; the others continue, and a restarted one joins"),
    48: Fault("a node dies while it joins or loads", "SIGKILL in `join`, before and in the reading of a checkpoint",
              "restarted, or the others end and say so; the checkpoint is used"),
    49: Fault("many trainings in a row", "200 elastic trainings from one process, with a kill in each",
              "no process, file, port or thread is left over"),
    50: Fault("small files that become large", "gzipped networks of 32 MB in 40 kB; studies nested, long, of millions of runs",
              "refused, with less than 100 MB more memory"),
}  # fmt: skip
QUICK = {1, 3, 4, 9, 10, 11, 15, 16, 17, 18, 19, 21, 22, 23, 24, 25, *range(29, 33), 34, 35, 37, *range(40, 51)}


class Row:
    """What a test says of its row."""

    def __init__(self, number: int, test: str) -> None:
        self.number, self.test, self.found, self.trials = number, test, "", 0
        self.verdict: str | None = None

    def measured(self, found: str, *, trials: int) -> None:
        """What was seen, in a few words with figures, and how many times it was tried."""
        self.found, self.trials = found, trials

    def record(self, verdict: str) -> None:
        """Add a line to the records."""
        self.verdict = verdict if verdict != NOT_YET else None
        if RECORDS:
            with Path(RECORDS).open("a") as file:
                told = {"row": self.number, "test": self.test, "found": self.found, "trials": self.trials}
                file.write(json.dumps(told | {"verdict": verdict, "on": str(date.today())}) + "\n")


def newest(records: list[dict]) -> list[dict]:
    """The last record of each test. A record of a whole row, without a test, counts until one of its tests is measured."""
    found = {(record["row"], record["test"]): record for record in records}
    again = {row for row, test in found if test}
    return [record for (row, test), record in found.items() if test or row not in again]


def table(records: list[dict], *, all_rows: bool = True) -> str:
    """The table in Markdown; of rows that were measured, or of all."""
    lines = ["| | fault | injection | trials | bar | measured | verdict | on |", "|---|---|---|--:|---|---|---|---|"]
    for number, fault in ROWS.items():
        mine = [record for record in records if record["row"] == number]
        found = "; ".join(record["found"] for record in mine if record["found"]) or "-"
        trials = sum(record["trials"] for record in mine)
        verdicts = sorted({record["verdict"] for record in mine}) or [NOT_YET]
        dates = " and ".join(sorted({record["on"] for record in mine}))
        cells = [f"F{number}", fault.name, fault.injection, f"{trials:,}", fault.bar, found, "; ".join(verdicts), dates]
        if mine or all_rows:
            lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |")
    return "\n".join(lines)


def main(records: Path, page: Path) -> int:
    """Write the page, and print what was measured today; 0 if all of it holds, or says why it cannot be done."""
    found = newest([json.loads(line) for line in records.read_text().splitlines()])
    records.write_text(
        "".join(json.dumps(record) + "\n" for record in sorted(found, key=lambda one: (one["row"], one["test"])))
    )
    missing = [f"F{number}" for number in ROWS if number not in {record["row"] for record in found}]
    machine = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    heading = (
        "# Faults, and what was measured\n\n"
        f"Written by `scripts/faults`, on {machine}. Each row is a test in `tests/faults`, which CI runs with few trials or "
        "not at all; see also [failures](../howto/failures.md). The last column is the day of the measurement.\n\n"
    )
    if missing:
        heading += f"Not measured by this script yet, although tested: {', '.join(missing)}.\n\n"
    today = [record for record in found if record["on"] == str(date.today())]
    sys.stdout.write(table(today, all_rows=False) + "\n")
    page.write_text(heading + table(found) + "\n")
    held = all(record["verdict"] == "holds" or record["verdict"].startswith("not done here") for record in today)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
