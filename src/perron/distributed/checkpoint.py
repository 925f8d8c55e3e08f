"""Checkpoints: each node saves its own state; loading verifies it, falls back to an older one, and agrees with the others.

    FOLDER/RUN/step-0000000120/node-3.safetensors   of node 3, see `perron._storage.tensorfile`

A file holds the algorithm's state, the model's buffers, torch's random state on the CPU and the states of schedulers,
generators and the like (`checkpoint_states`); its facts are the step, the network, the parameter groups and the user's
notes. RUN is the `run_id` of the training, so that parts of different trainings never mix. A file that is damaged or has
numbers that are not finite does not count as saved, and is named. The process that is node 3 locks FOLDER/node-3.lock until
it ends: another training in the same folder is refused.

Formats and files are in `checkpoint_files`, which checkpoints a training may resume from in `checkpoint_inventory`, which it may
remove in `checkpoint_record`.
"""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from perron._modules import average_buffers
from perron._registry import public_dir
from perron._storage import tensorfile
from perron._storage.atomic import make_directory
from perron.distributed.checkpoint_files import (
    BUFFER,
    FORMAT,
    INNER,
    Moment,
    find_moments,
    find_nodes,
    find_nonfinite,
    read_part,
    remove_part,
    remove_partial,
    write_part,
)
from perron.distributed.checkpoint_inventory import Inventory, inspect
from perron.distributed.checkpoint_record import (
    Origin,
    find_removable,
    lock_folder,
    note_run,
    origins,
    write_record,
)
from perron.distributed.checkpoint_states import load_common, load_own, pack_states
from perron.distributed.collective import diverged, retry_collective
from perron.distributed.consistency import gather_texts
from perron.distributed.inner import named_state, plain_groups, typed_groups, unnamed_state
from perron.distributed.optimizer import Decentralized
from perron.distributed.process_group import START_TIMEOUT
from perron.errors import DivergenceError, FileError, PerronError, listed

IDENTITY = ("algorithm", "network", "node", "nodes", "step")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was loaded: its step, the user's notes, and a remark if not everything could be restored."""

    step: int
    notes: dict[str, Any]
    remark: str = ""


def save(
    folder: str | Path,
    optimizer: Decentralized,
    *,
    notes: dict[str, Any] | None = None,
    states: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """Save this node's part of a checkpoint; call it on every node after the same step.

    Args:
        folder: the same on all nodes, or one on each machine's own disk.
        notes: anything that JSON can represent, as the epoch.
        states: schedulers, scalers, samplers and the like by name, with ``state_dict()``, and generators of torch.
        keep: the number of checkpoints to keep, 2 or more (nodes do not save at the same moment). Older ones of this node are
            removed, but never the newest that every other node is sure to have: where saves are few steps apart, more are kept.
            Only files of this training are removed: those of runs that it resumed from, and its own.

    Raises:
        DivergenceError: a tensor is not finite. Nothing is saved or removed.
    """
    _refuse_asynchronous(optimizer)
    if keep < 2:
        raise FileError(f"keep must be 2 or more, since nodes do not save at the same moment; got {keep}.")
    folder, state = Path(folder), optimizer.state_dict()
    own = state["perron"]
    alike = isinstance(getattr(optimizer.algorithm, "local_steps", 1), int)
    number, now = own["node"], Moment(optimizer.run_id, own["step"], own["received"] if alike else 0)
    tensors = {f"state.{name}": value for name, value in own["state"].items()}
    tensors |= {f"progress.{name}": value for name, value in own["progress"].items()}
    tensors |= {"last": own["last"], "random": torch.get_rng_state()}
    moments, plain = named_state(state["state"])
    tensors |= {f"{INNER}{name}": value for name, value in moments.items()}
    if optimizer.model is not None:
        tensors |= {f"{BUFFER}{name}": buffer for name, buffer in optimizer.model.named_buffers()}
    if wrong := find_nonfinite(tensors, optimizer.infinite_buffers):
        where = f"Node {optimizer.node.name} has diverged: after step {now.step}, it is not finite in {wrong}"
        why = f"{where}. This is not saved; earlier checkpoints are kept. Lower lr, or pass clip=."
        raise diverged(optimizer, DivergenceError(why))
    facts = {"format": FORMAT, "name": optimizer.node.name} | {name: own[name] for name in IDENTITY}
    if own["received"]:  # in the middle of a step
        facts["received"] = own["received"]
    facts["bytes_sent"] = own["bytes_sent"]
    facts |= {"notes": notes or {}, "param_groups": plain_groups(state["param_groups"]), "inner": plain}
    more, facts["states"] = pack_states(states or {})
    tensors |= more
    try:
        json.dumps(facts)
    except (TypeError, ValueError) as error:
        raise FileError(f"A checkpoint's notes and parameter groups must be plain JSON values: {error}.") from None
    make_directory(folder)
    lock_folder(folder, optimizer)
    record, target = note_run(folder, optimizer), now.within(folder)
    write_part(target / f"node-{number}.safetensors", tensors, facts)
    record.last = now
    write_record(folder, optimizer, record)
    others = [moment for moment in find_moments(folder, number) if moment != now]
    for old in find_removable(others, now, optimizer, record, keep):
        remove_part(folder, old, number)
    return target


def load(
    folder: str | Path, optimizer: Decentralized, *, fresh: bool = False, states: Mapping[str, Any] | None = None
) -> Checkpoint | None:
    """Resume from the newest checkpoint that every node can use; return None if there is none.

    With the number of nodes that saved it, training resumes bit for bit. With another number, every node starts from the
    average of the saved models that it finds, and the algorithm restarts; what belongs to a node, as its notes and states, it
    gets back. A warning says so, and also if newer checkpoints were skipped because they are damaged, or because a node died
    before it saved its part. A process that joined a running training loads nothing.

    Args:
        folder: as of `save`.
        optimizer: the optimizer of the training.
        fresh: whether to start a new training in a folder with checkpoints of others. They are neither loaded, now or
            later, nor removed.
        states: the objects whose states were saved, by name. A node that is new gets what all others have in common, as the
            state of a scheduler; generators are its own.

    Raises:
        FileError: there are checkpoints, but not all nodes can use them, as when a disk is not mounted; or one is in a format
            that this version does not know (`FormatError`).
    """
    _refuse_asynchronous(optimizer)
    if optimizer.joined:
        return None
    folder = Path(folder)
    with suppress(FileError):  # loading from a read-only folder is allowed
        make_directory(folder)
        lock_folder(folder, optimizer)
    texts: list[str] = []

    def exchange() -> None:
        report = json.dumps(inspect(folder, optimizer, fresh=fresh))
        texts[:] = gather_texts(report, optimizer.node.peers, START_TIMEOUT)

    if not retry_collective(optimizer, "load", exchange):
        return None
    found, number = Inventory(folder, [json.loads(text) for text in texts]), optimizer.node.number
    _keep_run_id_newest(optimizer, found.last_run)
    origins[optimizer] = Origin(optimizer.run_id, found.chosen, found.kept(number))
    checkpoint = None
    if found.chosen is not None:
        restore = _resume if found.chosen in found.common else _average
        try:
            checkpoint = restore(folder, found.chosen, optimizer, found.remark, states or {})
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:  # intact, but not written by `save`
            place = found.chosen.within(folder)
            raise FileError(f"{place} is not a checkpoint of this model: {error!r:.200}.") from None
    record = found.record(number)
    record.since = optimizer.run_id if fresh else record.since
    with suppress(FileError):  # a read-only folder or a full disk
        remove_partial(folder, number, {run for run in record.runs if run >= record.first})
        write_record(folder, optimizer, record)
    remark = f"{found.remark} Training starts from the beginning." if found.remark else ""
    if checkpoint is not None:
        remark = checkpoint.remark
    if remark:
        warnings.warn(remark, stacklevel=2)
    return checkpoint


def _keep_run_id_newest(optimizer: Decentralized, latest: str) -> None:
    """Raise the run id above those in the folder, if the clock was set back: the next checkpoints have to count as newer."""
    if latest >= optimizer.run_id and (number := latest.partition("-")[0]).isdecimal():
        optimizer.run_id = f"{int(number) + 1:020d}-{optimizer.run_id.partition('-')[2]}"


def _resume(
    folder: Path, moment: Moment, optimizer: Decentralized, remark: str, states: Mapping[str, Any]
) -> Checkpoint:
    facts, tensors = part = read_part(folder, moment, optimizer.node.number, optimizer.infinite_buffers)
    own = {name: facts[name] for name in IDENTITY}
    own |= {"last": tensors["last"], "state": tensorfile.part(tensors, "state.")}
    own |= {"received": facts.get("received", 0), "progress": tensorfile.part(tensors, "progress.")}
    own["bytes_sent"] = facts.get("bytes_sent", 0)
    moments = unnamed_state(tensorfile.part(tensors, INNER), facts.get("inner", {}))
    groups = typed_groups(facts["param_groups"], optimizer.param_groups)
    optimizer.load_state_dict({"state": moments, "param_groups": groups, "perron": own})
    _set_buffers(optimizer, tensorfile.part(tensors, BUFFER))
    torch.set_rng_state(tensors["random"])
    return Checkpoint(moment.step, facts["notes"], _joined(remark, load_own(states, part)))


def _average(
    folder: Path, moment: Moment, optimizer: Decentralized, remark: str, states: Mapping[str, Any]
) -> Checkpoint:
    """Start from the average of the models that another number of nodes saved."""
    readable, damage = [], []
    for number in find_nodes(moment.within(folder)):  # others may be on other machines
        try:
            readable.append(read_part(folder, moment, number, optimizer.infinite_buffers))
        except FileError as error:
            damage.append(str(error))
    if not readable:
        raise FileError(f"None of the files in {moment.within(folder)} can be read. {listed(damage, sep=' ')}")
    mine = [part for part in readable if part[0].get("name", part[0]["node"]) == optimizer.node.name]
    facts = (mine or readable)[0][0]
    mean = torch.stack([tensors["state.x"] for _, tensors in readable]).mean(0)
    optimizer.set_parameters(mean, step=moment.step)
    for own, old in zip(
        optimizer.param_groups, typed_groups(facts["param_groups"], optimizer.param_groups), strict=False
    ):
        own.update({key: value for key, value in old.items() if key != "params"})
    buffers: dict[str, list[Tensor]] = defaultdict(list)
    for _, tensors in readable:
        for name, value in tensorfile.part(tensors, BUFFER).items():
            buffers[name].append(value)
    floats = {name: torch.stack(values) for name, values in buffers.items() if values[0].is_floating_point()}
    _set_buffers(optimizer, {name: values[0] for name, values in buffers.items()} | average_buffers(floats))
    text = (
        f"The checkpoint of step {moment.step} was saved by {facts['nodes']} nodes, now there are {optimizer.node.nodes}: all "
        f"start from the average of the {len(readable)} models found, and the algorithm restarts."
    )
    if mine:
        torch.set_rng_state(mine[0][1]["random"])
    about = load_own(states, mine[0]) if mine else load_common(states, readable)
    return Checkpoint(moment.step, facts["notes"], _joined(remark, *damage, text, about))


def _joined(*remarks: str) -> str:
    return " ".join(remark for remark in remarks if remark)


def _set_buffers(optimizer: Decentralized, buffers: dict[str, Tensor]) -> None:
    if optimizer.model is not None:
        with torch.no_grad():
            for name, buffer in optimizer.model.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])


def _refuse_asynchronous(optimizer: Decentralized) -> None:
    if optimizer.asynchronous:
        raise PerronError(
            "Checkpoints are taken after the same step on every node, and asynchronous nodes do not step together. Save the "
            "averaged model (optimizer.averaged_model()), or leave out asynchronous=True."
        )


__dir__ = public_dir(__name__)
