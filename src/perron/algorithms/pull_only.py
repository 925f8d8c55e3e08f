"""Pull-only methods: everything is pulled with a row-stochastic A; diag(A^t), learned on the way, corrects its bias.

Each node keeps the n-vector v_i, row i of A^t, and divides its gradient by D = v_i[i], which tends to pi_A[i]. A node needs an
index among n, but not its receivers. Every node must have a self-loop. x-hat = pi_A^T x follows SGD with the
step n lr, up to a residual eps = lr (1^T - pi_A^T D^-1) grad that dies out exponentially.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from perron.algorithms.base import About, Algorithm, Rate, Step, weighted
from perron.algorithms.moves import Moving
from perron.algorithms.node import Node
from perron.algorithms.requirements import check_momentum, warn_if_small_steps_fail
from perron.algorithms.states import extend
from perron.algorithms.trackers import Late, begun
from perron.errors import PerronError
from perron.networks.facts import Network


def _own(node: Node, v: Tensor) -> Tensor:
    """This node's entry of its n-vector, ``(n,) -> (1,)``."""
    return (v * node.unit).sum(-1, keepdim=True)


def _tracked(state: Any, network: Network) -> dict[str, Tensor]:
    """pi_A^T y = pi_A^T D^-1 grad, and the same of the tracker's weight, if there is one."""
    weight = {"pi'w - pi'1/D": weighted(network.pull_perron, state.w - state.one)} if "w" in state._fields else {}
    return {"pi'y - pi'grad/D": weighted(network.pull_perron, state.y - state.scaled)} | weight


class PullDiagState(NamedTuple):
    """Estimate, what is averaged over n D, and the row of A^t."""

    x: Tensor
    start: Tensor
    share: Tensor
    v: Tensor


@dataclass(frozen=True, kw_only=True)
class PullDiag(Algorithm):
    """Pull-Diag gossip: every node's x tends to the average of the starting values; no gradients.

    v+ = A v     D+ = own entry of v+     x+ = A x + z / (n D+) - z / (n D)          from x = z / n, v = unit vector

    where z is the starting value; the last two terms keep pi_A^T x = pi_A^T (z / (n D)) as D settles.

    Reference: Mai & Abed 2016.
    """

    @property
    def about(self) -> About:
        return About(
            title="Pull-Diag gossip", family="gossip", matrices="A", exact=True, reference="Mai & Abed 2016",
            speedup=False,
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> PullDiagState:
        """x = z / n."""
        return PullDiagState(x / node.nodes, start=x, share=x / node.nodes, v=node.unit)

    def step(self, state: PullDiagState, node: Node, lr: Rate) -> Step:
        pulled, row = node.pull(state.x), node.pull(state.v)
        yield from ()  # no gradient is needed
        v = row.wait()
        share = state.start / (node.nodes * _own(node, v))
        return PullDiagState(pulled.wait() + share - state.share, state.start, share, v)

    def conserved(self, state: PullDiagState, network: Network) -> dict[str, Tensor]:
        return {"pi'x - pi'z/nD": weighted(network.pull_perron, state.x - state.share)}


class GradientPullState(NamedTuple):
    """Model and the row of A^t."""

    x: Tensor
    v: Tensor


@dataclass(frozen=True, kw_only=True)
class GradientPull(Moving):
    """Gradient-Pull: gradient descent with rescaled gradients. Biased by O(lr); use a falling lr.

    x+ = A x - lr grad(x) / D     v+ = A v     D = own entry of v                     from v = unit vector

    With another ``move``, its displacement along grad(x) takes the place of -lr grad(x). One that depends on the scale of grad(x)
    is not divided by D, so that nodes count by pi_A and not alike; with AdamW the bias does not vanish with lr.

    Reference: Mai & Abed 2016.
    """

    tracks: ClassVar[bool] = False

    @property
    def about(self) -> About:
        return About(
            title=self.titled("Gradient-Pull"),
            family="pull-only",
            matrices="A",
            exact=False,
            reference="Mai & Abed 2016",
        )

    def init(self, x: Tensor, node: Node) -> Any:
        """v = unit vector."""
        return self.begin(GradientPullState(x, v=node.unit))

    def step(self, state: Any, node: Node, lr: Rate) -> Step:
        pulled, row = node.pull(state.x), node.pull(state.v)
        grad = yield state.x
        dx, memory = self.displace(state, grad, lr)
        x = pulled.wait() + (dx if self.move.scale_dependent else dx / _own(node, state.v))
        return extend(GradientPullState(x, row.wait()), memory)


class PullTrackerState(NamedTuple):
    """Model, tracker, the rescaled gradient that it contains last, and the row of A^t."""

    x: Tensor
    y: Tensor
    scaled: Tensor
    v: Tensor


class LatePullTrackerState(NamedTuple):
    """`PullTrackerState`, and 1 once the first step is done."""

    x: Tensor
    y: Tensor
    scaled: Tensor
    v: Tensor
    begun: Tensor


@dataclass(frozen=True, kw_only=True)
class FROST(Moving):
    """FROST (cta) and Pull-Diag-GT (atc): gradient tracking with rescaled gradients h = grad(x) / D.

    cta:  y = A y + h - h_prev      x+ = A x - lr y          v+ = A v     D = own entry of v
    atc:  y = A (y + h - h_prev)    x+ = A (x - lr y)        v+ = A v

    from y = h_prev = 0 and v = unit vector, so that the first step has y = h, which ``atc`` does not mix (see `PushPull`).
    Conserves pi_A^T y = pi_A^T h. Its step must shrink with n min pi_A. With another ``move``, its displacement along y takes the
    place of -lr y; for moves that depend on the scale of y it is along y / w, where w is the tracker of 1 / D.

    Reference: Xin, Xi & Khan 2019 (FROST); Li, Cheng, Bi & Hu 2019; Liang et al. 2025 (Pull-Diag-GT).
    """

    order: Literal["cta", "atc"] = "cta"

    @property
    def about(self) -> About:
        cta = self.order == "cta"
        return About(
            title=self.titled("FROST" if cta else "Pull-Diag-GT (FROST, ATC)"), family="pull-only", matrices="A", exact=True,
            reference="Xin, Xi & Khan 2019" if cta else "Liang et al. 2025", varying=False,
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> Any:
        """y = h = 0."""
        zero = torch.zeros_like(x)
        if self.order == "atc":
            return self.begin(LatePullTrackerState(x, y=zero, scaled=zero, v=node.unit, begun=begun(self, x)))
        return self.begin(PullTrackerState(x, y=zero, scaled=zero, v=node.unit))

    def step(self, state: Any, node: Node, lr: Rate) -> Step:
        row, own = node.pull(state.v), _own(node, state.v)
        if self.order == "cta":
            pulled, tracker = node.pull(state.x), node.pull(state.y)
            weight = self.weigh(state, node.pull, one=1 / own)
            grad = yield state.x
            scaled = grad / own
            y = tracker.wait() + scaled - state.scaled
            dx, memory = self.displace(state, y, lr, weight)
            return extend(PullTrackerState(pulled.wait() + dx, y, scaled, row.wait()), memory)
        grad = yield state.x
        scaled = grad / own
        late = Late(node.pull, state.y + scaled - state.scaled, state.begun)
        weight = self.weigh(state, node.pull, one=1 / own, late=True)
        y = late.wait()
        dx, memory = self.displace(state, y, lr, weight)
        x = node.pull(state.x + dx).wait()
        return extend(LatePullTrackerState(x, y, scaled, row.wait(), torch.ones_like(state.begun)), memory)

    def conserved(self, state: Any, network: Network) -> dict[str, Tensor]:
        return _tracked(state, network)


class FrozenState(NamedTuple):
    """Model (extrapolated), the point before extrapolation, tracker, its last rescaled gradient, the row of A^t."""

    x: Tensor
    q: Tensor
    y: Tensor
    scaled: Tensor
    v: Tensor


@dataclass(frozen=True, kw_only=True)
class FROZEN(Algorithm):
    """FROZEN: FROST with Nesterov momentum.

    y = A y + h - h_prev     q+ = A x - lr y     x+ = q+ + momentum (q+ - q)     v+ = A v     h = grad(x) / D

    from q = x. Without momentum it is FROST. `check` refuses momentum that no step makes stable on the network.

    Reference: Xin, Jakovetic & Khan 2019.
    """

    momentum: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise PerronError(f"FROZEN needs 0 <= momentum < 1; got {self.momentum}.")

    @property
    def about(self) -> About:
        return About(
            title="FROZEN", family="pull-only", matrices="A", exact=True, reference="Xin, Jakovetic & Khan 2019", varying=False,
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> FrozenState:
        """Start at rest."""
        zero = torch.zeros_like(x)
        return FrozenState(x, q=x, y=zero, scaled=zero, v=node.unit)

    def step(self, state: FrozenState, node: Node, lr: Rate) -> Step:
        pulled, tracker, row = node.pull(state.x), node.pull(state.y), node.pull(state.v)
        grad = yield state.x
        scaled = grad / _own(node, state.v)
        y = tracker.wait() + scaled - state.scaled
        q = pulled.wait() - lr * y
        return FrozenState(q + self.momentum * (q - state.q), q, y, scaled, row.wait())

    def conserved(self, state: FrozenState, network: Network) -> dict[str, Tensor]:
        return _tracked(state, network)

    def check(self, network: Network) -> None:
        super().check(network)
        check_momentum(self.about.title, network, 0.0, self.momentum)

    def effective_step(self, network: Network) -> float:
        """n / (1 - momentum), in the long run."""
        return super().effective_step(network) / (1 - self.momentum)

    def default_lr(self, network: Network, smoothness: float) -> float:
        """The default step of FROST, divided by the gain of momentum."""
        return super().default_lr(network, smoothness) * (1 - self.momentum)


class DDNGTState(NamedTuple):
    """Model, previous model, the point of the next gradient, tracker, its last rescaled gradient, the row of A^t."""

    x: Tensor
    previous: Tensor
    ahead: Tensor
    y: Tensor
    scaled: Tensor
    v: Tensor


@dataclass(frozen=True, kw_only=True)
class DDNGT(Algorithm):
    """D-DNGT: FROST with momentum used twice, as heavy ball and as Nesterov.

    y = A y + h - h_prev     x+ = A w + momentum (x - x_prev) - lr y     w+ = x+ + momentum (x+ - x)     h = grad(w) / D

    from w = x. Needs momentum < 1/2, and less on most networks, which `check` checks.

    Reference: Lu, Liao, Li & Huang 2020.
    """

    momentum: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 0.5:
            raise PerronError(f"D-DNGT needs 0 <= momentum < 1/2; got {self.momentum}.")

    @property
    def about(self) -> About:
        return About(
            title="D-DNGT", family="pull-only", matrices="A", exact=True, reference="Lu, Liao, Li & Huang 2020", varying=False,
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> DDNGTState:
        """Start at rest."""
        zero = torch.zeros_like(x)
        return DDNGTState(x, previous=x, ahead=x, y=zero, scaled=zero, v=node.unit)

    def step(self, state: DDNGTState, node: Node, lr: Rate) -> Step:
        pulled, tracker, row = node.pull(state.ahead), node.pull(state.y), node.pull(state.v)
        grad = yield state.ahead
        scaled = grad / _own(node, state.v)
        y = tracker.wait() + scaled - state.scaled
        x = pulled.wait() + self.momentum * (state.x - state.previous) - lr * y
        return DDNGTState(x, state.x, x + self.momentum * (x - state.x), y, scaled, row.wait())

    def conserved(self, state: DDNGTState, network: Network) -> dict[str, Tensor]:
        return _tracked(state, network)

    def check(self, network: Network) -> None:
        super().check(network)
        check_momentum(self.about.title, network, self.momentum, self.momentum)

    def effective_step(self, network: Network) -> float:
        """n / (1 - 2 momentum), in the long run."""
        return super().effective_step(network) / (1 - 2 * self.momentum)

    def default_lr(self, network: Network, smoothness: float) -> float:
        """The default step of FROST, divided by the gain of momentum."""
        return super().default_lr(network, smoothness) * (1 - 2 * self.momentum)


class RowExtraState(NamedTuple):
    """Model, the correction, and the row of A^t."""

    x: Tensor
    q: Tensor
    v: Tensor


@dataclass(frozen=True, kw_only=True)
class RowExtra(Algorithm):
    """Row-stochastic EXTRA: implicit tracking by a correction q, with one d-vector on the wire.

    x+ = A x - lr grad(x) / D - q     q+ = q + theta (x - A x)     v+ = A v                 from q = 0

    Conserves pi_A^T q = 0. As EXTRA-Push it may be unstable for small steps; `check` warns. It is our own reconstruction of a
    method described by Ghaderyan, Aybat, Aguiar & Pereira 2023 (FRSD), whose text we have not read, hence not its name.
    """

    theta: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.theta <= 0.5:
            raise PerronError(f"RowExtra needs 0 < theta <= 1/2; got {self.theta}.")

    @property
    def about(self) -> About:
        return About(
            title=f"Row-stochastic EXTRA, theta={self.theta:g}", family="pull-only", matrices="A", exact=True,
            reference="after Ghaderyan et al. 2023", speedup=False, varying=False,
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> RowExtraState:
        """q = 0."""
        return RowExtraState(x, q=torch.zeros_like(x), v=node.unit)

    def step(self, state: RowExtraState, node: Node, lr: Rate) -> Step:
        pulled, row = node.pull(state.x), node.pull(state.v)
        grad = yield state.x
        mixed = pulled.wait()
        x = mixed - lr * grad / _own(node, state.v) - state.q
        return RowExtraState(x, state.q + self.theta * (state.x - mixed), row.wait())

    def conserved(self, state: RowExtraState, network: Network) -> dict[str, Tensor]:
        return {"pi'q": weighted(network.pull_perron, state.q)}

    def check(self, network: Network) -> None:
        super().check(network)
        warn_if_small_steps_fail(self.about.title, network, "pull", self.theta)
