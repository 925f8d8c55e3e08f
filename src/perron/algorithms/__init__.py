"""Algorithms, by family. `ALGORITHMS` lists 46 variants of 29 methods by their short names."""

from perron._registry import public_dir
from perron.algorithms.base import Algorithm
from perron.algorithms.centralized import CentralizedSGD
from perron.algorithms.federated import FOCUS
from perron.algorithms.local_steps import DiLoCo, LocalPushPull, PushPullDiLoCo
from perron.algorithms.moves import MOVES, AdamW, Clipped, Descent, Momentum, Move, Proximal
from perron.algorithms.pull_only import DDNGT, FROST, FROZEN, GradientPull, PullDiag, RowExtra
from perron.algorithms.push_only import ADDOPT, DEXTRA, SGP, PushDIGing, PushSum, SubgradientPush
from perron.algorithms.push_pull import AcceleratedPushPull, ConstrainedPushPull, PushPull
from perron.algorithms.robust import RobustPushPull
from perron.algorithms.trees import TreePushPull
from perron.algorithms.undirected import DSGD, EXTRA, NIDS, ExactDiffusion, GradientTracking
from perron.algorithms.variance_reduced import SAGA, SVRG

ALGORITHMS: dict[str, Algorithm] = {
    "centralized": CentralizedSGD(),
    "diloco": DiLoCo(),
    "local_sgd": DiLoCo(outer_lr=1.0, outer_momentum=0.0),
    "push_pull": PushPull(),
    "push_pull_pu": PushPull(order="pu"),
    "push_pull_atc": PushPull(order="atc"),
    "abm": AcceleratedPushPull(heavy=0.3, nesterov=0.0),
    "abn": AcceleratedPushPull(heavy=0.0, nesterov=0.3),
    "app": AcceleratedPushPull(),
    "constrained_push_pull": ConstrainedPushPull(),
    "robust_push_pull": RobustPushPull(),
    "local_push_pull": LocalPushPull(),
    "push_pull_diloco": PushPullDiLoCo(),
    "push_sum": PushSum(),
    "subgradient_push": SubgradientPush(),
    "sgp": SGP(),
    "sgp_cta": SGP(order="cta"),
    "extra_push": DEXTRA(theta=0.5),
    "normalized_extra_push": DEXTRA(theta=0.5, normalized=True),
    "dextra": DEXTRA(),
    "add_opt": ADDOPT(),
    "push_diging": PushDIGing(),
    "pull_diag": PullDiag(),
    "gradient_pull": GradientPull(),
    "frost": FROST(),
    "pull_diag_gt": FROST(order="atc"),
    "frozen": FROZEN(),
    "d_dngt": DDNGT(),
    "row_extra": RowExtra(),
    "dsgd": DSGD(),
    "dsgd_atc": DSGD(order="atc"),
    "exact_diffusion": ExactDiffusion(),
    "nids": NIDS(),
    "d2": ExactDiffusion(damped=False),
    "extra": EXTRA(),
    "diging": GradientTracking(),
    "next": GradientTracking(order="pu"),
    "aug_dgm": GradientTracking(order="atc"),
    "btpp": TreePushPull(tree="B-ary"),
    "stpp": TreePushPull(),
    "focus": FOCUS(),
    "focus_sampled": FOCUS(local_steps=3, participation=0.3),
    "ab_saga": SAGA(),
    "ab_svrg": SVRG(),
    "push_saga": SAGA(method=ADDOPT()),
    "gt_saga": SAGA(method=GradientTracking()),
}

__all__ = [
    "ADDOPT",
    "ALGORITHMS",
    "DDNGT",
    "DEXTRA",
    "DSGD",
    "EXTRA",
    "FOCUS",
    "FROST",
    "FROZEN",
    "MOVES",
    "NIDS",
    "SAGA",
    "SGP",
    "SVRG",
    "AcceleratedPushPull",
    "AdamW",
    "CentralizedSGD",
    "Clipped",
    "ConstrainedPushPull",
    "Descent",
    "DiLoCo",
    "ExactDiffusion",
    "GradientPull",
    "GradientTracking",
    "LocalPushPull",
    "Momentum",
    "Move",
    "Proximal",
    "PullDiag",
    "PushDIGing",
    "PushPull",
    "PushPullDiLoCo",
    "PushSum",
    "RobustPushPull",
    "RowExtra",
    "SubgradientPush",
    "TreePushPull",
]

__dir__ = public_dir(__name__)
