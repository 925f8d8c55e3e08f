"""Which checkpoints all nodes can use: each node reports what it has, and all of them draw the same conclusion.

The newest checkpoint that every node can use is taken. Newer ones that are damaged, or that some nodes did not live to save, are
passed over with a remark. The training is refused if there are checkpoints, but none that all nodes can use, or if a newer one
is in a format that this version does not know: to start without them would abandon finished work.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from perron.distributed.checkpoint_files import Moment, find_moments, read_part, saved_by
from perron.distributed.checkpoint_record import Record, read_record
from perron.distributed.optimizer import Decentralized
from perron.errors import FileError, FormatError, listed

SHOWN = 3  # checkpoints in an error
FRESH = "To start a new training, pass fresh=True or choose another folder; nothing in this one is removed or changed."

Report = dict[str, Any]


def inspect(folder: Path, optimizer: Decentralized, *, fresh: bool) -> Report:
    """Return what this node has: the moments of which it sees files, those that it can use and how, and why not the others."""
    number, nodes = optimizer.node.number, optimizer.node.nodes
    report: Report = {"node": optimizer.node.name, "fresh": fresh, "record": asdict(Record()), "refused": ""}
    report |= {"visible": find_moments(folder), "same": [], "other": [], "unreadable": [], "unknown": []}
    try:
        report["record"] = asdict(read_record(folder, optimizer.node.name))
    except FileError as error:
        report["refused"] = str(error)
    own = set(find_moments(folder, number))
    for moment in report["visible"]:
        reason, kind = "", "unreadable"
        try:
            saved_by_nodes = read_part(folder, moment, number, optimizer.infinite_buffers)[0]["nodes"]
        except FileError as error:
            saved_by_nodes, reason = saved_by(folder, moment), str(error)
            kind = "unknown" if isinstance(error, FormatError) else "unreadable"
        if saved_by_nodes not in (None, nodes):
            report["other"].append(moment)
        elif not reason:
            report["same"].append(moment)
        elif moment in own:
            report[kind].append([*moment, reason])
    return report


class Inventory:
    """The checkpoints of all nodes.

    Args:
        folder: for errors.
        reports: of all nodes, as `inspect` returns them.

    Attributes:
        chosen: the moment to resume from; None to start from the beginning.
        common: the moments that all nodes can resume from bit for bit; from others they can take the average of the models.
        remark: why newer moments were passed over.
        runs: all runs of which there are files.
        last_run: the latest run of which any node has files.
    """

    def __init__(self, folder: Path, reports: list[Report]) -> None:
        self.folder, self.reports = folder, reports
        if len({report["fresh"] for report in reports}) > 1:
            raise FileError("Some nodes start with fresh=True and others without it; all need the same.")
        self.fresh = bool(reports[0]["fresh"])
        self.records = [Record(**report["record"] | {"last": Moment(*report["record"]["last"])}) for report in reports]
        visible = {Moment(*one) for report in reports for one in report["visible"]}
        self.runs = {moment.run for moment in visible}
        self.last_run = max(self.runs, default="")
        since = max(record.since for record in self.records)
        self.moments = set() if self.fresh else {moment for moment in visible if moment.run >= since}
        same, other = (
            set.intersection(*({Moment(*one) for one in report[key]} for report in reports)) & self.moments
            for key in ("same", "other")
        )
        self.common = same
        self.chosen = max(same | other, default=None)
        self.newer = sorted(one for one in self.moments if self.chosen is None or one > self.chosen)
        self.unfinished = {moment for moment in self.newer if self._is_unfinished(moment)}
        self.remark = ""
        self._refuse()
        if self.newer:
            steps = ", ".join(map(str, self.newer))
            reasons = [reason for moment in self.newer for _, reason in self._obstacles(moment)]
            self.remark = (
                f"Checkpoints of step {steps} are damaged or not there on every node. {listed(reasons, sep=' ')}"
            )

    def kept(self, rank: int) -> frozenset[Moment]:
        """Return the moments that a node must not remove: it cannot read them, or others lack them for an unknown reason."""
        report = self.reports[rank]
        unreadable = {Moment(*one) for key in ("unreadable", "unknown") for *one, _ in report[key]}
        return frozenset(unreadable | (set(self.newer) - self.unfinished))

    def record(self, rank: int) -> Record:
        """Return a node's record without runs of which nothing is left, for a training that resumes from the chosen moment."""
        old = self.records[rank]
        if self.fresh:
            return Record()
        runs = [run for run in old.runs if run in self.runs]
        first = old.first
        if self.chosen is not None and (self.chosen.run not in runs or self.chosen.run < first):
            first = self.chosen.run
            runs = sorted({*runs, first})
        return Record(runs, first, old.since, old.last)

    def _is_unfinished(self, moment: Moment) -> bool:
        """Return whether a node lacks a checkpoint because it did not live to save it."""
        return any(
            record.died_before(moment) and moment not in self._has(report)
            for record, report in zip(self.records, self.reports, strict=True)
        )

    def _has(self, report: Report) -> set[Moment]:
        """Return the moments that a node can use, or has in a form that it cannot use."""
        usable = {Moment(*one) for key in ("same", "other") for one in report[key]}
        return usable | {Moment(*one) for key in ("unreadable", "unknown") for *one, _ in report[key]}

    def _obstacles(self, moment: Moment) -> list[tuple[int, str]]:
        """Return the nodes that cannot use a moment, with the reasons."""
        found = []
        for report in self.reports:
            node = report["node"]
            reasons = [
                f"Node {node}: {why}"
                for key in ("unreadable", "unknown")
                for *one, why in report[key]
                if Moment(*one) == moment
            ]
            if reasons or moment not in self._has(report):
                found.append((node, reasons[0] if reasons else f"Node {node} has none of {moment}."))
        return found

    def _refuse(self) -> None:
        """Raise an error if training must not start: it says who can use what, and what to do."""
        for report in self.reports:
            if report["refused"] and not self.fresh:
                raise FileError(f"Node {report['node']}: {report['refused']}")
        unknown = {Moment(*one) for report in self.reports for *one, _ in report["unknown"]} & set(self.newer)
        if unknown:
            remedy = "Use the version of perron that wrote it"
            if self.chosen is not None:
                remedy += f", or move it to another folder to resume from step {self.chosen}"
            raise FormatError(
                f"A checkpoint in {self.folder} has a format that this version of perron does not know. "
                f"{self._explain(sorted(unknown, reverse=True))} {remedy}. {FRESH}"
            )
        finished = sorted(set(self.newer) - self.unfinished, reverse=True)
        if self.chosen is None and finished:
            raise FileError(
                f"There are checkpoints in {self.folder}, but none that all {len(self.reports)} nodes can use. "
                f"{self._explain(finished)} Make them available to all nodes (is a disk not mounted?). {FRESH}"
            )

    def _explain(self, moments: list[Moment]) -> str:
        """Return which nodes can use these moments, and why others cannot."""
        texts = []
        for moment in moments[:SHOWN]:
            obstacles = self._obstacles(moment)
            unable = {node for node, _ in obstacles}
            able = [report["node"] for report in self.reports if report["node"] not in unable]
            who = f"can be used by node {listed(able)}" if able else "can be used by no node"
            why = listed((reason for _, reason in obstacles), sep=" ") or "Its parts are of different numbers of nodes."
            texts.append(f"Step {moment} {who}. {why}")
        if len(moments) > SHOWN:
            texts.append(f"{len(moments) - SHOWN} more cannot be used by all nodes.")
        return " ".join(texts)
