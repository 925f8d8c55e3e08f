"""Any `nn.Module` as a function of one flat vector, on real data that is spread over the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from perron._modules import LossAt, average_buffers
from perron._registry import lookup
from perron._storage.tensorfile import digest
from perron.data import augment as augmentations
from perron.data import datasets, models
from perron.data.augment import Augmentation
from perron.data.datasets import Images
from perron.data.partition import deal
from perron.errors import PerronError
from perron.problems._batches import Batches
from perron.problems._stacked import Stacked
from perron.problems.base import Problem
from perron.random import Keyed

AUGMENTATION, DROPOUT = 2, 3  # streams of random numbers, besides that of `Batches`
CHUNK = 1000  # samples that are evaluated at a time


class Neural(Problem):
    """f_i(x) = the mean loss over node i's samples of a network whose parameters are the vector x.

    The parameters of all nodes are one tensor ``(..., n, P)``. Networks that are a chain of linear layers and activations are
    computed for all nodes at once, with batched products (`Stacked`); for all others the module's parameters become views of one
    node's row after the other, and gradients are summed up in their place by autograd: nothing is flattened, stacked or copied.

    Buffers, as BatchNorm's statistics, are each node's own; an averaged model has averaged statistics. Models are evaluated in
    eval mode. The data stay in memory as they are (bytes, if images); a batch becomes numbers of mean 0 and standard deviation
    1, as measured on the training images, channel by channel.

    Args:
        model: a network for a batch of inputs; copied. Its trainable parameters are x.
        data: inputs and targets, for training and for testing, see `perron.data.Images`; bytes or floating-point numbers.
        parts: for each node, the indices of its training samples; see `perron.data.partition`.
        batch: samples of each node for a stochastic gradient; None for all (exact gradients).
        loss: ``(outputs, targets) -> mean over the samples``.
        sampling: ``"epochs"``: each node goes through its samples in a random order, then in another, and so on;
            ``"replacement"``: every sample of every batch is drawn anew.
        augment: how images are changed at random in training.
        weight_decay: this times x is added to the gradients (not to the loss).
        start: where runs start, ``(P,)`` or ``(n, P)``; the model's own parameters, on all nodes, if None.
        evaluate: for the training loss, take so many samples (always the same ones) instead of all.

    Example:
        >>> import perron
        >>> problem = Neural.images(8, data="digits", model="mlp", width=32, depth=1, batch=16)
        >>> mixing = perron.Mixing.uniform(perron.topologies.exponential(8))
        >>> history = perron.simulate(problem, perron.PushPull(), mixing, lr=0.2, steps=150, metrics=["test_accuracy"])
        >>> bool(history["test_accuracy"][-1] > 0.85)
        True
    """

    dtype = torch.float32

    def __init__(
        self,
        model: nn.Module,
        data: Images,
        parts: Sequence[Tensor],
        *,
        batch: int | None = 128,
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        sampling: Literal["epochs", "replacement"] = "epochs",
        augment: Augmentation | None = None,
        weight_decay: float = 0.0,
        start: Tensor | None = None,
        evaluate: int | None = None,
    ) -> None:
        _check(data, parts, batch, sampling, evaluate)
        self.model, self.batch, self.sampling, self.augment = deepcopy(model), batch, sampling, augment
        labels, test_labels = (
            part if part.is_floating_point() else part.long() for part in (data.labels, data.test_labels)
        )
        self.data = data._replace(labels=labels, test_labels=test_labels)
        self.parts = [torch.as_tensor(part, dtype=torch.int64) for part in parts]
        self.weight_decay, self.evaluate = weight_decay, evaluate
        # Parts of a model that is trained may be left in eval mode, as BatchNorm that is frozen.
        self._evaluating = [name for name, module in model.named_modules() if not module.training and model.training]
        self._loss = loss
        self._params = [param for param in self.model.parameters() if param.requires_grad]
        if not self._params:
            raise PerronError(f"None of the parameters of {type(model).__name__} requires a gradient.")
        self._sizes = [param.numel() for param in self._params]
        self.nodes, self.dim = len(self.parts), sum(self._sizes)
        self._longest = max(len(part) for part in self.parts)  # of all nodes, for one of them alone, too
        self._start = vector(self.model) if start is None else start.detach().clone()
        if tuple(self._start.shape) not in ((self.dim,), (self.nodes, self.dim)):
            shapes = f"({self.dim},) or ({self.nodes}, {self.dim})"
            raise PerronError(f"start has the shape {tuple(self._start.shape)}; it must be {shapes}.")
        if augment is not None and batch is None:
            raise PerronError(
                "Exact gradients (batch=None) are of the samples as they are: leave out augment, or set batch."
            )
        self._moments = _normalised(data.images)
        self._prepare(self._params[0].dtype, torch.device("cpu"))
        self._try_out()

    def _try_out(self) -> None:
        """Whether model, data and loss go together."""
        inputs, labels = next(self._chunks(self.data.images, self.data.labels, self.parts[0][:2]))
        self.model.train(False)
        largest = -1 if labels.is_floating_point() else int(self.data.labels.max())
        try:
            with torch.no_grad():
                outputs = self.model(inputs)
                if outputs.ndim == 2 and outputs.shape[1] <= largest:
                    raise PerronError(f"The model has {outputs.shape[1]} outputs, but labels go up to {largest}.")
                loss = self._loss(outputs, labels)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            shapes = f"inputs {tuple(inputs.shape)} and targets {tuple(labels.shape)}"
            raise PerronError(f"Model and loss do not go with {shapes} as {labels.dtype}: {error}") from None
        if loss.ndim:
            raise PerronError(
                f"The loss must be one number, the mean over the samples; got the shape {tuple(loss.shape)}."
            )

    def _prepare(self, dtype: torch.dtype, device: torch.device | str) -> None:
        """What is made from the arguments: it depends on precision and device, and starts afresh."""
        self.dtype = dtype
        self.model = self.model.to(device=device, dtype=dtype)
        self._params = [param for param in self.model.parameters() if param.requires_grad]
        self._stacked = Stacked.of(self.model, self.data.images.ndim)
        self._places = _buffers(self.model)
        own = {name: module._buffers[key] for name, (module, key) in self._places.items()}
        self._own = {name: buffer.clone() for name, buffer in own.items() if buffer is not None}
        self._buffers: dict[str, Tensor] = {}  # of all nodes, (rows, ...), from the first gradient on
        self.data = Images(*(part.to(device) for part in self.data))
        self._shift, self._scale = (part.to(device, dtype) for part in self._moments)
        self.batches = Batches(self.parts, self.batch or 1, self.sampling, longest=self._longest)

    @classmethod
    def images(
        cls,
        nodes: int,
        *,
        data: str = "digits",
        folder: str | None = None,
        samples: int | None = None,
        model: str = "mlp",
        width: int | None = None,
        depth: int = 2,
        partition: str = "dirichlet",
        concentration: float = 0.9,
        shards: int = 2,
        batch: int | None = 128,
        sampling: Literal["epochs", "replacement"] = "epochs",
        augment: str = "none",
        weight_decay: float = 0.0,
        start: Literal["common", "own"] = "common",
        evaluate: int | None = None,
        seed: int = 0,
    ) -> Neural:
        """A network from `perron.data.models` that classifies a dataset from `perron.data`.

        Args:
            nodes: n.
            data, folder: which dataset, and where its files are if not in the usual places.
            samples: train on the first so many images only.
            model, width: which network, and how wide: the hidden layers of an mlp, the first channels of the others.
            depth: how many hidden layers an mlp has.
            partition, concentration, shards: how samples are dealt out, see `perron.data.partition`.
            batch, sampling, weight_decay, evaluate: as for `Neural`.
            augment: ``"none"``, ``"standard"`` (crop and flip) or ``"authors"``.
            start: ``"common"``: the same initial model for all nodes; ``"own"``: each node has its own.
            seed: of initial models and of the partition.
        """
        lookup(start, {"common": None, "own": None}, "start")
        content = datasets.load(data, folder)
        if samples is not None:
            if not 1 <= samples <= len(content.labels):
                raise PerronError(f"{data} has {len(content.labels):,} training images; got samples={samples}.")
            content = content._replace(images=content.images[:samples], labels=content.labels[:samples])
        shape: Any = tuple(content.images.shape[1:])
        options: dict[str, Any] = {} if width is None else {"width": width}
        if model == "mlp":
            options = {"hidden": (1024 if width is None else width,) * depth}
        classes = int(max(content.labels.max(), content.test_labels.max())) + 1

        def made(number: int) -> nn.Module:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed + number)
                return models.build(model, shape, classes, **options)

        own = None if start == "common" else torch.stack([vector(made(node)) for node in range(nodes)])
        return cls(
            made(0),
            content,
            deal(content.labels, nodes, partition=partition, concentration=concentration, shards=shards, seed=seed),
            batch=batch,
            sampling=sampling,
            augment=lookup(augment, augmentations.PRESETS, "augmentation"),
            weight_decay=weight_decay,
            start=own,
            evaluate=evaluate,
        )

    # ---- what every problem has

    def to(self, *, dtype: torch.dtype, device: torch.device | str) -> Neural:
        """The same problem in another precision or on another device, from the start: with fresh buffers."""
        return self._with(self.parts, self._start, dtype, device)

    def of_node(self, number: int) -> Neural:
        """One node's samples."""
        start = self._start[number : number + 1] if self._start.ndim == 2 else self._start
        return self._with([self.parts[number]], start, self.dtype, self._shift.device)

    def _with(self, parts: Sequence[Tensor], start: Tensor, dtype: torch.dtype, device: torch.device | str) -> Neural:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.model = deepcopy(self.model)
        for name, (_, key) in self._places.items():
            other.model.get_submodule(name.rpartition(".")[0])._buffers[key] = self._own[name].clone()
        other.parts, other._start, other.nodes, other.batch_losses = list(parts), start, len(parts), None
        other._prepare(dtype, device)
        return other

    def start(self) -> Tensor:
        """The initial models."""
        return self._start.expand(self.nodes, self.dim)

    def grad(self, x: Tensor, draw: int, random: Keyed) -> Tensor:
        """Return gradients over a minibatch of each node in each trial, in training mode."""
        return self.grad_into(x, draw, random, torch.empty_like(x))

    def grad_into(self, x: Tensor, draw: int, random: Keyed, out: Tensor) -> Tensor:
        if self.batch is None:
            return self.local_grads(x, out)
        points, grads = x.reshape(-1, self.dim), out.view(-1, self.dim)
        chosen = self.batches(draw, random).view(len(points), self.batch)
        inputs = self._inputs(self.data.images, chosen)
        if self.augment is not None:
            numbers = random.stream(AUGMENTATION).uniform(draw, self.batch * self.augment.numbers)
            flat = self.augment(inputs.flatten(0, 1), numbers.view(-1, self.augment.numbers).to(self.dtype))
            inputs = flat.view_as(inputs)
        inputs, targets = self._normal(inputs), self.data.labels[chosen]
        if self._stacked is not None:
            losses = self._stacked.grad(points, inputs, targets, self._loss, grads)
        else:
            seeds = random.stream(DROPOUT).integers(draw, 1, 2**53).view(-1).tolist()
            losses = self._looped(points, inputs, targets, grads, seeds)
        if self.weight_decay:
            out.add_(x, alpha=self.weight_decay)
        self.batch_losses = losses.view(x.shape[:-1])
        return out

    def local_grads(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Over all samples of each node, as they are (without augmentation), in eval mode, with each node's own statistics."""
        out = torch.zeros_like(x) if out is None else out.zero_()
        self._remember(x.numel() // self.dim)
        self.model.train(False)
        losses = []
        for row, (point, grad) in enumerate(zip(x.reshape(-1, self.dim), out.view(-1, self.dim), strict=True)):
            node = row % self.nodes
            self._wear(point, grad)
            self._wear_buffers({name: values[row] for name, values in self._buffers.items()})
            losses.append(torch.zeros((), dtype=self.dtype, device=x.device))
            for inputs, targets in self._chunks(self.data.images, self.data.labels, self.parts[node]):
                with torch.enable_grad():
                    part = self._loss(self.model(inputs), targets) * (len(targets) / len(self.parts[node]))
                    part.backward()  # type: ignore[no-untyped-call]
                losses[-1] += part.detach()
        if self.weight_decay:
            out.add_(x, alpha=self.weight_decay)
        self.batch_losses = torch.stack(losses).view(x.shape[:-1])
        return out

    def loss(self, x: Tensor) -> Tensor:
        """The training loss at common points, without augmentation, in eval mode, over all samples or those of ``evaluate``."""
        share, parts = torch.full((self.nodes,), 1 / self.nodes), self.parts
        if self.evaluate is not None:  # the same samples, whoever has them
            order = torch.randperm(len(self.data.labels), generator=torch.Generator().manual_seed(0))
            taken = order[torch.isin(order, torch.cat(parts))][: self.evaluate]
            parts = [part[torch.isin(part, taken)] for part in parts]
        total, weights = torch.zeros(x.shape[:-1], dtype=torch.float64), 0.0
        for some, part in zip(parts, self.parts, strict=True):
            if len(some):  # a sample of a node with m samples weighs 1/m
                total += self._scored(x, share, self.data.images, self.data.labels, some)[0] * len(some) / len(part)
                weights += len(some) / len(part)
        return total / weights

    def scores(self, x: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and accuracy on the test set."""
        everything = torch.arange(len(self.data.test_labels))
        return self._scored(x, share, self.data.test_images, self.data.test_labels, everything)

    def hessian(self, x: Tensor) -> Tensor:
        """Not for networks: they are too large, and their loss is evaluated without a graph."""
        raise PerronError("The second derivative of a network is not computed; measure loss_mean or grad_norm_sq.")

    def hessian_products(self, x: Tensor, samples: int | None = None) -> Callable[[Tensor], Tensor]:
        """Of the losses of `local_grads`; with ``samples``, over so many of each node, chosen at random, at most."""
        self._remember(self.nodes)
        orders = (torch.randperm(len(part), generator=torch.Generator().manual_seed(0)) for part in self.parts)
        chosen = [part[order[:samples]] for part, order in zip(self.parts, orders, strict=True)]
        at = LossAt(self.model, self._loss)

        def product(v: Tensor) -> Tensor:
            self.model.train(False)
            out = self.weight_decay * v
            for node, some in enumerate(chosen):
                self._wear_buffers({name: values[node] for name, values in self._buffers.items()})
                for inputs, targets in self._chunks(self.data.images, self.data.labels, some):
                    out[node] += at.product(x, v[node], inputs, targets) * (len(targets) / len(some))
            return out

        return product

    def fingerprint(self) -> dict[str, Any]:
        """Data, partition, start, model and all settings."""
        made_of = digest([*self.data, *self.parts, self._start, *self._own.values()])
        facts = (str(self.model), str(self.augment), getattr(self._loss, "__qualname__", repr(self._loss)))
        settings = (self.batch, self.sampling, self.weight_decay, self.evaluate, self._evaluating)
        return {"type": type(self).__name__, "made of": [made_of, *facts, *map(str, settings)]}

    @property
    def memory(self) -> dict[str, Tensor]:
        """The buffers of all nodes."""
        return dict(self._buffers)

    def recall(self, memory: dict[str, Tensor]) -> None:
        """Put back the buffers of all nodes."""
        self._buffers = {name: value.to(self._shift.device) for name, value in memory.items()}

    # ---- one node after the other

    def _looped(self, points: Tensor, inputs: Tensor, targets: Tensor, grads: Tensor, seeds: list[int]) -> Tensor:
        """The gradients of each row at its own point; its losses."""
        self._remember(len(points))
        self.model.train()
        for name in self._evaluating:
            self.model.get_submodule(name).train(False)
        losses = []
        gpus = [points.device.index or 0] if points.device.type == "cuda" else []
        for row, (point, grad) in enumerate(zip(points, grads.zero_(), strict=True)):
            self._wear(point, grad)
            self._wear_buffers({name: values[row] for name, values in self._buffers.items()})
            with torch.enable_grad(), torch.random.fork_rng(devices=gpus):
                torch.manual_seed(seeds[row])  # for dropout and the like, wherever it is
                loss = self._loss(self.model(inputs[row]), targets[row])
                loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            if not row and set(_buffers(self.model)) != set(self._places):
                new_ones = ", ".join(sorted(set(_buffers(self.model)) - set(self._places)))
                raise PerronError(f"The model made buffers while it ran: {new_ones}. Give them a value from the start.")
            for name, (module, key) in self._places.items():  # a module may have put a new one in the place
                if (new := module._buffers[key]) is not None and new.data_ptr() != self._buffers[name][row].data_ptr():
                    self._buffers[name][row] = new
        return torch.stack(losses)

    def _wear(self, point: Tensor, grad: Tensor | None = None) -> None:
        """Let the module's parameters be views of a point, and their gradients of another."""
        grads: Sequence[Tensor | None] = [None] * len(self._sizes)
        if grad is not None:
            grads = grad.split(self._sizes)  # type: ignore[no-untyped-call]
        parts = point.split(self._sizes)  # type: ignore[no-untyped-call]
        for param, part, into in zip(self._params, parts, grads, strict=True):
            param.data = part.view(param.shape)
            param.grad = None if into is None else into.view(param.shape)

    def _wear_buffers(self, buffers: dict[str, Tensor]) -> None:
        for name, (module, key) in self._places.items():
            module._buffers[key] = buffers[name]

    def _remember(self, rows: int) -> None:
        """Buffers for every node of every trial, at first those of the model."""
        if self._own and not self._buffers:
            self._buffers = {name: own.expand(rows, *own.shape).clone() for name, own in self._own.items()}

    def _scored(self, x: Tensor, share: Tensor, images: Tensor, labels: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy on some samples at common points ``(..., d)``."""
        points = x.reshape(-1, self.dim)
        self._remember(len(points) * self.nodes)
        self.model.train(False)
        found = []
        with torch.no_grad():
            for trial, point in enumerate(points):
                self._wear(point.to(self.dtype))
                self._wear_buffers(self._shared(trial, share))
                loss, right = 0.0, 0
                for inputs, targets in self._chunks(images, labels, which):
                    outputs = self.model(inputs)
                    loss += float(self._loss(outputs, targets)) * len(targets)
                    if not targets.is_floating_point():
                        right += int((outputs.argmax(1) == targets).sum())
                found.append((loss / len(which), right / len(which)))
        losses, shares = torch.tensor(found, dtype=torch.float64).view(*x.shape[:-1], 2).unbind(-1)
        unknown = labels.is_floating_point() | losses.isnan()  # what is not a number is not right by chance
        return losses, shares.masked_fill(unknown, torch.nan)

    def _shared(self, trial: int, share: Tensor) -> dict[str, Tensor]:
        """Buffers averaged over the nodes of a trial; of whole numbers, those of the node that counts most."""
        mine = {name: values[trial * self.nodes : (trial + 1) * self.nodes] for name, values in self._buffers.items()}
        floats = {name: values for name, values in mine.items() if values.is_floating_point()}
        return {name: values[int(share.argmax())] for name, values in mine.items()} | average_buffers(floats, share)

    # ---- samples

    def _chunks(self, images: Tensor, labels: Tensor, which: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for part in which.to(labels.device).split(CHUNK):  # type: ignore[no-untyped-call]
            yield self._normal(self._inputs(images, part)), labels[part]

    def _inputs(self, images: Tensor, which: Tensor) -> Tensor:
        flat = images.reshape(len(images), -1).index_select(0, which.reshape(-1))
        return flat.view(*which.shape, *images.shape[1:])

    def _normal(self, inputs: Tensor) -> Tensor:
        return torch.addcmul(self._shift, inputs.to(self.dtype), self._scale)


def _buffers(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Where each buffer is, by name: its module, and its key there."""
    return {
        f"{path}.{key}" if path else key: (module, key)
        for path, module in model.named_modules()
        for key, buffer in module._buffers.items()
        if buffer is not None
    }


def vector(model: nn.Module) -> Tensor:
    """A model's trainable parameters as one vector."""
    return torch.cat([param.detach().reshape(-1) for param in model.parameters() if param.requires_grad])


def _normalised(images: Tensor) -> tuple[Tensor, Tensor]:
    """Shift and scale of each channel ``(C, 1, 1)``, for bytes that are to have mean 0 and standard deviation 1."""
    if images.dtype != torch.uint8:
        return torch.zeros(()), torch.ones(())
    channels = images.transpose(0, 1).reshape(images.shape[1], -1)
    counts = torch.stack([torch.bincount(one, minlength=256) for one in channels]).double()  # (C, 256)
    value = torch.arange(256.0, dtype=torch.float64)
    mean = (counts @ value) / counts.sum(1)
    deviation = ((counts @ value.square()) / counts.sum(1) - mean.square()).clamp_min(0).sqrt()
    deviation[deviation < 1e-6] = 1.0  # of what is the same everywhere
    shape = (-1, *[1] * (images.ndim - 2))
    return (-mean / deviation).view(shape), (1 / deviation).view(shape)


def _check(data: Images, parts: Sequence[Any], batch: int | None, sampling: str, evaluate: int | None) -> None:
    for images, labels, what in (
        (data.images, data.labels, "training"),
        (data.test_images, data.test_labels, "test"),
    ):
        if len(images) != len(labels) or not len(images):
            raise PerronError(f"There are {len(images)} {what} inputs but {len(labels)} targets; they go in pairs.")
    if not parts or any(len(part) == 0 for part in parts):
        raise PerronError(f"Every node needs a sample; got parts of {[len(part) for part in parts]}.")
    together = torch.cat([torch.as_tensor(part) for part in parts])
    if int(together.min()) < 0 or int(together.max()) >= len(data.labels):
        raise PerronError(
            f"Parts name samples {int(together.min())} .. {int(together.max())}, but there are {len(data.labels)}."
        )
    if batch is not None and batch < 1:
        raise PerronError(f"batch is the number of samples for a gradient, 1 or more, or None for all; got {batch}.")
    if sampling not in ("epochs", "replacement"):
        raise PerronError(f"sampling is 'epochs' or 'replacement'; got {sampling!r}.")
    if evaluate is not None and evaluate < 1:
        raise PerronError(f"evaluate is a number of samples, 1 or more, or None for all; got {evaluate}.")
