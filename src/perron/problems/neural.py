"""Any `nn.Module` as a function of one flat vector, on real data that is spread over the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy, deepcopy
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from perron._modules import LossAt, average_buffers, locate_buffers, vector
from perron._registry import lookup
from perron._storage.tensorfile import digest
from perron.data import augment as augmentations
from perron.data import datasets, models
from perron.data.augment import Augmentation
from perron.data.datasets import Images
from perron.data.partition import deal
from perron.errors import PerronError
from perron.problems._batches import Batches
from perron.problems._samples import check_model, check_samples, normalization
from perron.problems._stacked import Stacked
from perron.problems.base import Problem
from perron.random import Keyed

AUGMENTATION, DROPOUT = 2, 3  # streams of random numbers, besides that of `Batches`
CHUNK = 1000  # samples that are evaluated at a time


class Neural(Problem):
    """A neural network: f_i(x) is the mean loss over the samples of node i, with the network's parameters x.

    The parameters of all nodes are one tensor ``(..., n, P)``. Chains of linear layers and activations are computed for all nodes
    at once, with batched products (`Stacked`). For other networks the parameters of the module become views of one node's row
    after the other, and autograd accumulates the gradients in place: nothing is flattened, stacked or copied.

    Buffers, such as BatchNorm's statistics, belong to each node; an averaged model has averaged statistics. Models are evaluated
    in eval mode. Data stay in memory as they are (bytes for images); batches are normalized per channel to mean 0 and standard
    deviation 1, as measured on the training images.

    Args:
        model: a network for a batch of inputs; copied. Its trainable parameters are x.
        data: inputs and targets, see `perron.data.Images`; bytes, floating-point numbers, or tokens (int64), used as they are.
        parts: for each node, the indices of its training samples; see `perron.data.partition`.
        batch: samples of each node for a stochastic gradient; None for all (exact gradients).
        loss: ``(outputs, targets) -> mean over the samples``.
        sampling: ``"epochs"``: each node shuffles its samples once per epoch; ``"replacement"``: every sample of every batch is
            drawn independently.
        augment: random augmentation of training images.
        weight_decay: this times x is added to the gradients (not to the loss).
        start: initial parameters, ``(P,)`` or ``(n, P)``; those of the model, on all nodes, if None.
        evaluate: number of samples for the training loss, always the same ones; all if None.

    Example:
        >>> import perron
        >>> problem = Neural.images(8, data="digits", model="mlp", width=32, depth=1, batch=16)
        >>> mixing = perron.Mixing.uniform(perron.topologies.exponential(8))
        >>> history = perron.simulate(problem, perron.PushPull(), mixing, lr=0.2, steps=150, metrics=["test_accuracy"])
        >>> bool(history["test_accuracy"][-1] > 0.85)
        True
    """

    dtype = torch.float32
    per_node = ("parts",)
    shared = ("data", "_start", "_moments", "_shift", "_scale")
    fixed_dtype = ("model", "data", "_params", "_own", "_buffers", "_start", "_moments")

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
        check_samples(data, parts, batch, sampling, evaluate)
        self.model, self.batch, self.sampling, self.augment = deepcopy(model), batch, sampling, augment
        labels, test_labels = (
            part if part.is_floating_point() else part.long() for part in (data.labels, data.test_labels)
        )
        self.data = data._replace(labels=labels, test_labels=test_labels)
        self.parts = [torch.as_tensor(part, dtype=torch.int64) for part in parts]
        self.weight_decay, self.evaluate = weight_decay, evaluate
        # Parts of a model in training may be in eval mode, such as frozen BatchNorm.
        self._evaluating = [name for name, module in model.named_modules() if not module.training and model.training]
        self._loss = loss
        self._params = [param for param in self.model.parameters() if param.requires_grad]
        if not self._params:
            raise PerronError(f"None of the parameters of {type(model).__name__} requires a gradient.")
        self._sizes = [param.numel() for param in self._params]
        self.nodes, self.dim = len(self.parts), sum(self._sizes)
        self._longest = max(len(part) for part in self.parts)  # also when this is the problem of one node alone
        self._start = vector(self.model) if start is None else start.detach().clone()
        if tuple(self._start.shape) not in ((self.dim,), (self.nodes, self.dim)):
            shapes = f"({self.dim},) or ({self.nodes}, {self.dim})"
            raise PerronError(f"start has the shape {tuple(self._start.shape)}; it must be {shapes}.")
        if augment is not None and batch is None:
            raise PerronError("Exact gradients (batch=None) are not augmented: leave out augment, or set batch.")
        self._moments = normalization(data.images)
        self._prepare(self._params[0].dtype, torch.device("cpu"))
        inputs, labels = next(self._chunks(self.data.images, self.data.labels, self.parts[0][:2]))
        largest = -1 if labels.is_floating_point() else int(self.data.labels.max())
        check_model(self.model, self._loss, inputs, labels, largest)

    def _prepare(self, dtype: torch.dtype, device: torch.device | str) -> None:
        """Set up everything that depends on precision and device."""
        self.dtype = dtype
        self.model = self.model.to(device=device, dtype=dtype)
        self._params = [param for param in self.model.parameters() if param.requires_grad]
        self._stacked = Stacked.of(self.model, self.data.images.ndim)
        self._places = locate_buffers(self.model)
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
    ) -> Self:
        """A network from `perron.data.models` that classifies a dataset from `perron.data`.

        Args:
            nodes: n.
            data, folder: name of the data set, and the folder of its files if it is not a default one.
            samples: number of training images, the first of the data set; all if None.
            model, width: name of the network, and its width: hidden units of an mlp, first channels of the others.
            depth: number of hidden layers of an mlp.
            partition, concentration, shards: how samples are distributed, see `perron.data.partition`.
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

    # ---- the interface of a problem

    def to(self, *, dtype: torch.dtype, device: torch.device | str) -> Self:
        return super().to(dtype=dtype, device=device)._fresh(dtype, device)

    def of_node(self, number: int) -> Self:
        other = super().of_node(number)
        if self._start.ndim == 2:
            other._start = self._start[number : number + 1]
        return other._fresh(self.dtype, self._shift.device)

    def _fresh(self, dtype: torch.dtype, device: torch.device | str) -> Self:
        """A copy with a module of its own, which has the buffers of the model as it was given."""
        other = copy(self)
        other.model, other.batch_losses = deepcopy(self.model), None
        for name, (_, key) in self._places.items():
            other.model.get_submodule(name.rpartition(".")[0])._buffers[key] = self._own[name].clone()
        other._prepare(dtype, device)
        return other

    def start(self) -> Tensor:
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
        """Gradients over all samples, without augmentation, in eval mode, with each node's own statistics."""
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
        """The training loss, without augmentation, in eval mode, over all samples or those of ``evaluate``."""
        share, parts = torch.full((self.nodes,), 1 / self.nodes), self.parts
        if self.evaluate is not None:  # the same samples, however they are distributed
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
        everything = torch.arange(len(self.data.test_labels))
        return self._scored(x, share, self.data.test_images, self.data.test_labels, everything)

    def hessian(self, x: Tensor) -> Tensor:
        """Not for networks: they are too large, and their loss is evaluated without a graph."""
        raise PerronError("The second derivative of a network is not computed; measure loss_mean or grad_norm_sq.")

    def hessian_products(self, x: Tensor, samples: int | None = None) -> Callable[[Tensor], Tensor]:
        """As in `Problem`, of the losses of `local_grads`; over at most ``samples`` random samples per node, if given."""
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
        made_of = digest([*self.data, *self.parts, self._start, *self._own.values()])
        facts = (str(self.model), str(self.augment), getattr(self._loss, "__qualname__", repr(self._loss)))
        settings = (self.batch, self.sampling, self.weight_decay, self.evaluate, self._evaluating)
        return {"type": type(self).__name__, "made of": [made_of, *facts, *map(str, settings)]}

    @property
    def memory(self) -> dict[str, Tensor]:
        return dict(self._buffers)

    def recall(self, memory: dict[str, Tensor]) -> None:
        self._buffers = {name: value.to(self._shift.device) for name, value in memory.items()}

    # ---- one node after the other

    def _looped(self, points: Tensor, inputs: Tensor, targets: Tensor, grads: Tensor, seeds: list[int]) -> Tensor:
        """Write the gradient of each row at its own point, one after the other; return the losses."""
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
            if not row and set(locate_buffers(self.model)) != set(self._places):
                new_ones = ", ".join(sorted(set(locate_buffers(self.model)) - set(self._places)))
                raise PerronError(f"The model made buffers while it ran: {new_ones}. Give them a value from the start.")
            for name, (module, key) in self._places.items():  # a module may have put a new one in the place
                if (new := module._buffers[key]) is not None and new.data_ptr() != self._buffers[name][row].data_ptr():
                    self._buffers[name][row] = new
        return torch.stack(losses)

    def _wear(self, point: Tensor, grad: Tensor | None = None) -> None:
        """Make the module's parameters views of a point, and their gradients views of ``grad``."""
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
        """Allocate the buffers of every node and trial, with the values of the model."""
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
                found.append((loss / len(which), right / (len(which) * labels[0].numel())))
        losses, shares = torch.tensor(found, dtype=torch.float64).view(*x.shape[:-1], 2).unbind(-1)
        unknown = labels.is_floating_point() | losses.isnan()  # what is not a number is not right by chance
        return losses, shares.masked_fill(unknown, torch.nan)

    def _shared(self, trial: int, share: Tensor) -> dict[str, Tensor]:
        """Average the buffers over the nodes of a trial; integer ones are those of the node with the largest weight."""
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
        whole = inputs.dtype == torch.int64
        return inputs if whole else torch.addcmul(self._shift, inputs.to(self.dtype), self._scale)
