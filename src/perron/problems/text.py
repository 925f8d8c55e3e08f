"""A GPT that predicts the next character of a play whose roles are dealt out to the nodes."""

from __future__ import annotations

import torch
from torch import Tensor

from perron.data import text
from perron.data.datasets import Images
from perron.data.models import GPT
from perron.errors import PerronError
from perron.problems.neural import Neural


def language_model(
    nodes: int,
    *,
    data: str = "tinyshakespeare",
    folder: str | None = None,
    context: int = 64,
    width: int = 128,
    depth: int = 5,
    batch: int | None = 8,
    evaluate: int | None = 1000,
    seed: int = 0,
) -> Neural:
    """A `GPT` over characters; every node has roles of its own (`perron.data.text.Play.split`), so that data are heterogeneous.

    A sample is a window of ``context`` characters, and its targets are the characters that follow each of them. A batch has
    windows that begin anywhere in the node's text, drawn independently. The test set is the validation part of the split, in
    windows side by side; test_accuracy is the share of characters that are predicted right.

    Args:
        nodes: n.
        data, folder: name of the text, and the folder of its file if it is not a default one.
        context: characters of a window.
        width, depth: coordinates, a multiple of 32, and layers of the GPT.
        batch: windows of each node for a stochastic gradient; None for all (exact gradients).
        evaluate: windows for the training loss, always the same ones; all if None.
        seed: of the initial model, which is the same for all nodes.
    """
    play = text.load(data, folder)
    parts, validation = play.split(nodes)
    if context < 1 or min(map(len, [*parts, validation])) <= context:
        shortest = min(map(len, [*parts, validation]))
        raise PerronError(f"A window has 1 to {shortest - 1:,} characters, less than the shortest part; got {context}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GPT(len(play.vocabulary), context=context, width=width, depth=depth)
    starts = torch.tensor([0, *map(len, parts)]).cumsum(0).tolist()
    own = [torch.arange(start, start + len(part) - context) for start, part in zip(starts, parts, strict=False)]
    samples = Images(*_windows(torch.cat(parts), context, 1), *_windows(validation, context, context))
    return Neural(model, samples, own, batch=batch, sampling="replacement", evaluate=evaluate)


def _windows(characters: Tensor, context: int, stride: int) -> tuple[Tensor, Tensor]:
    """Return windows and the characters that follow each of theirs, ``(windows, context)`` both, as views of the text."""
    return characters[:-1].unfold(0, context, stride), characters[1:].unfold(0, context, stride)
