"""Quadratics that are sums over samples, with different numbers of samples at the nodes."""

import torch

from perron.problems import Quadratic


class SampledQuadratic(Quadratic):
    """f_i,l = f_i + <e_i,l, x> + <x, D_i,l x>/2 for the 3 + i % 4 samples of a node; e_i,l and the diagonal D_i,l sum to zero.

    `grad` is that of `Quadratic`, with its noise.
    """

    per_node = ("slopes", "bends", "sample_counts")

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.sample_counts = 3 + torch.arange(self.nodes) % 4
        inside = (torch.arange(6) < self.sample_counts[:, None]).unsqueeze(-1)
        generator = torch.Generator().manual_seed(self.nodes)

        def centered():
            numbers = torch.randn(self.nodes, 6, self.dim, generator=generator, dtype=torch.float64)
            mean = (numbers * inside).sum(1, keepdim=True) / self.sample_counts[:, None, None]
            return torch.where(inside, numbers - mean, torch.nan)  # samples that do not exist

        self.slopes, self.bends = centered(), 0.1 * centered()

    def sample_grads(self, x, samples):
        node = torch.arange(self.nodes)[:, None]
        apart = self.slopes[node, samples] + self.bends[node, samples] * x.unsqueeze(-2)
        return self.local_grads(x).unsqueeze(-2) + apart
