"""One process of the tests of training tools: transformers.Trainer, Accelerate, Lightning. Started by test_clients.py."""
# ruff: noqa: E402 - the environment is set before tools are imported

import logging
import os
import sys
from contextlib import contextmanager
from pathlib import Path

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
LAUNCHED = {
    "RANK": RANK,
    "LOCAL_RANK": RANK,
    "WORLD_SIZE": SIZE,
    "LOCAL_WORLD_SIZE": SIZE,
    "TORCHELASTIC_RUN_ID": "test",
}
LAUNCHED |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}
os.environ |= {
    name: str(value) for name, value in LAUNCHED.items()
}  # as torchrun does; some tools read it when imported

import lightning
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from lightning.pytorch.callbacks import ModelCheckpoint
from processes import refused, run_group
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainingArguments

import perron
from perron import Mixing, PerronError, PushPull
from perron.distributed.consistency import DisagreementError, gather_tensors
from perron.distributed.process_group import show_world
from perron.networks import topologies

BATCH, MICRO_STEPS, HALF = 4, 2, 3  # samples of a batch, batches of a step, steps of an epoch; two epochs
MIXING = Mixing.random_integer(topologies.random_digraph(SIZE, seed=1), seed=1)
DIGITS = perron.data.load("digits")
MINE = perron.data.partition.by_label(DIGITS.labels, SIZE)[RANK][: BATCH * MICRO_STEPS * HALF]
IMAGES, LABELS = DIGITS.images[MINE].flatten(1).double() / 255, DIGITS.labels[MINE].long()
LOADER = DataLoader(TensorDataset(IMAGES, LABELS), BATCH)


class Classifier(lightning.LightningModule):
    """The model of all tools: called with images and labels by transformers, by `training_step` by Lightning."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(RANK)
        self.net = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10)).double()

    def forward(self, images, labels):
        return {"loss": nn.functional.cross_entropy(self.net(images), labels)}

    def training_step(self, batch, _):
        return self(*batch)["loss"]

    def configure_optimizers(self):
        self.optimizer, schedule = made(self)
        return [self.optimizer], [{"scheduler": schedule, "interval": "step"}]


def made(model):
    adamw = lambda groups: torch.optim.AdamW(groups, lr=0.02)  # noqa: E731
    optimizer = perron.Decentralized(model, PushPull(order="atc"), MIXING, inner=adamw, clip=0.5)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


def by_hand():
    model = Classifier()
    optimizer, schedule = made(model)
    for _ in range(2):
        for number, (images, labels) in enumerate(LOADER):
            (model(images, labels)["loss"] / MICRO_STEPS).backward()
            if number % MICRO_STEPS == MICRO_STEPS - 1:
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
    return optimizer


def by_trainer(folder, *, resume=False, **options):
    model = Classifier()
    optimizer, schedule = made(model)
    rows = [{"images": image, "labels": label} for image, label in zip(IMAGES, LABELS, strict=True)]
    settings = {"max_steps": 2 * HALF, "per_device_train_batch_size": BATCH, "gradient_accumulation_steps": MICRO_STEPS}
    settings |= {"save_steps": HALF, "train_sampling_strategy": "sequential", "max_grad_norm": 0.0} | options
    arguments = TrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, report_to="none", **settings)
    trainer = Trainer(model, arguments, train_dataset=rows, optimizers=(optimizer, schedule))
    try:
        trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-{HALF}" if resume else None)
    except PerronError:
        optimizer.close()
        raise
    return optimizer


def by_accelerate(folder, *, resume=False):
    model = Classifier()
    optimizer, schedule = made(model)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_STEPS)
    wrapped, prepared, loader, schedule = accelerator.prepare(model, optimizer, LOADER, schedule)
    if resume:
        accelerator.load_state(folder)
    try:
        while optimizer.steps < 2 * HALF:
            for images, labels in loader:
                with accelerator.accumulate(wrapped):
                    accelerator.backward(wrapped(images, labels)["loss"])
                    prepared.step()
                    schedule.step()
                    prepared.zero_grad()
            if optimizer.steps == HALF:
                accelerator.save_state(folder)
    except PerronError:
        optimizer.close()
        raise
    return optimizer


def by_lightning(folder, *, resume=False, **options):
    model = Classifier()
    trainer = lightning.Trainer(
        max_epochs=2, accumulate_grad_batches=MICRO_STEPS, accelerator="cpu", default_root_dir=folder, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ModelCheckpoint(folder, "{step}", every_n_epochs=1, save_top_k=-1)], **options,
    )  # fmt: skip
    try:
        trainer.fit(model, LOADER, ckpt_path=f"{folder}/step={HALF}.ckpt" if resume else None)
    except PerronError:
        model.optimizer.close()
        raise
    return model.optimizer


@contextmanager
def processes_hidden():
    """As after `perron.init(isolate=True)`; afterwards, as torchrun left it."""
    _forget()
    assert perron.init(isolate=True) == (RANK, SIZE)
    assert not dist.is_initialized()
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"} & set(os.environ)
    try:
        yield
    finally:
        show_world()
        os.environ.update({name: str(value) for name, value in LAUNCHED.items()})
        _forget()


def _forget():
    """Let Accelerate look again whether there are other processes."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@contextmanager
def warnings_of_perron():
    seen, handler, log = [], logging.Handler(), logging.getLogger("perron")
    handler.emit = lambda record: seen.append(record.getMessage())
    log.addHandler(handler)
    try:
        yield seen
    finally:
        log.removeHandler(handler)


def state_of(optimizer):
    """The algorithm's state and the moments, as one vector."""
    moments = [value.reshape(-1) for one in optimizer.state.values() for value in one.values()]
    return torch.cat([*(value.double().reshape(-1) for value in optimizer.algorithm_state), *moments])


def equals_a_loop_by_hand(by_tool, folder):
    """The same training by the tool and by hand; then from the tool's checkpoint after half of the steps."""
    with processes_hidden(), warnings_of_perron() as seen:
        wanted = by_hand()
        optimizer = by_tool(folder)
        assert optimizer.steps == 2 * HALF
        off = float((state_of(optimizer) - state_of(wanted)).abs().max())
        assert off < 1e-9, off
        models = gather_tensors(optimizer.algorithm_state.x, optimizer.node.peers, "", 60)
        assert all(not torch.equal(models[0], other) for other in models[1:])  # nothing averages nodes
        resumed = by_tool(folder, resume=True)
        assert resumed.steps == 2 * HALF
        assert torch.equal(state_of(resumed), state_of(optimizer))
        assert torch.equal(resumed.model.net[0].weight, optimizer.model.net[0].weight)
        assert not seen, seen
        for one in (wanted, optimizer, resumed):
            one.close()


def check_trainer_equals_a_loop_by_hand():
    equals_a_loop_by_hand(by_trainer, FOLDER / f"trainer-{RANK}")


def check_accelerate_equals_a_loop_by_hand():
    equals_a_loop_by_hand(by_accelerate, FOLDER / f"accelerate-{RANK}")


def check_lightning_equals_a_loop_by_hand():
    equals_a_loop_by_hand(by_lightning, FOLDER / f"lightning-{RANK}")


AVERAGED = ("averages the gradients of nodes 0, 1, 2, 3", "perron.init(isolate=True)")


def check_trainer_with_averaged_gradients_is_refused():
    _forget()
    refused(lambda: by_trainer(FOLDER / "wrapped"), *AVERAGED)


def check_accelerate_with_averaged_gradients_is_refused():
    _forget()
    refused(lambda: by_accelerate(FOLDER / "wrapped"), *AVERAGED)


def check_lightning_with_averaged_gradients_is_refused():
    refused(lambda: by_lightning(FOLDER / "wrapped", strategy="ddp", devices=SIZE), *AVERAGED)


def a_step(model, optimizer):
    optimizer.zero_grad()
    model(IMAGES, LABELS)["loss"].backward()
    optimizer.step()


def check_clipped_gradients_are_noticed():
    with processes_hidden(), warnings_of_perron() as seen:
        by_trainer(FOLDER / f"clipped-{RANK}", max_grad_norm=1e-3, save_strategy="no").close()
        assert len(seen) == 1, seen
        assert f"Node {RANK}: gradients were changed" in seen[0], seen
        assert "clip= to Decentralized" in seen[0], seen
    for norm, noticed in ((1e-3, True), (float("inf"), False)):  # tools measure norms by clipping to infinity
        model = Classifier()
        optimizer, _ = made(model)
        with warnings_of_perron() as seen:
            for _ in range(3):
                optimizer.zero_grad()
                model(IMAGES, LABELS)["loss"].backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
                optimizer.step()
        assert len(seen) == noticed, seen
        optimizer.close()


def check_a_scaler_is_no_clipping():
    model = Classifier()
    optimizer, _ = made(model)
    scaler = torch.amp.GradScaler("cpu")
    with warnings_of_perron() as seen:
        for unscale in (True, False):
            optimizer.zero_grad()
            scaler.scale(model(IMAGES, LABELS)["loss"]).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    assert optimizer.steps == 2
    assert not seen, seen
    optimizer.close()


def check_states_of_different_steps_are_refused():
    """As after a crash, when some nodes had saved and others had not."""
    model = Classifier()
    optimizer, _ = made(model)
    states = []
    for _ in range(2):
        a_step(model, optimizer)
        states.append(optimizer.state_dict())
    try:
        optimizer.load_state_dict(states[RANK % 2])
    except DisagreementError as error:
        assert "the step of the state to load (rank 0: 1; rank 1: 2; rank 3: 2)" in str(error), error
    else:
        raise AssertionError("nodes continue from different steps")
    optimizer.load_state_dict(states[0])
    a_step(model, optimizer)
    assert optimizer.steps == 2
    optimizer.close()


if __name__ == "__main__":
    run_group(globals())
