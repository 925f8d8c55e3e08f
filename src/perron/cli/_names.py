"""Names for shell completion: plain data, since completion must not import NumPy or PyTorch.

A test compares each tuple with the registry that it repeats; `perron advise` takes no text.
"""

TOPOLOGIES = (
    "exponential", "grid", "ring", "random", "geometric", "nearest_neighbor", "chordal_ring", "undirected_grid", "torus",
    "de_bruijn", "kautz", "random_digraph", "random_k_out", "equitopo", "one_peer_exponential", "complete", "star", "path",
    "hypercube", "tree",
)  # fmt: skip
WEIGHT_RULES = ("random_integer", "uniform", "lazy", "metropolis", "balanced", "spanning_trees")
ALGORITHMS = (
    "centralized", "diloco", "local_sgd", "push_pull", "push_pull_pu", "push_pull_atc", "abm", "abn", "app",
    "constrained_push_pull", "robust_push_pull", "local_push_pull", "push_pull_diloco", "push_sum", "subgradient_push", "sgp",
    "sgp_cta", "extra_push", "normalized_extra_push", "dextra", "add_opt", "push_diging", "pull_diag", "gradient_pull", "frost",
    "pull_diag_gt", "frozen", "d_dngt", "row_extra", "dsgd", "dsgd_atc", "exact_diffusion", "nids", "d2", "extra", "diging",
    "next", "aug_dgm", "btpp", "stpp", "focus", "focus_sampled", "ab_saga", "ab_svrg", "push_saga", "gt_saga",
)  # fmt: skip
GOALS = ("fastest", "sum", "alignment", "level", "rate", "balanced", "symmetric", "leaf")
PROBLEMS = ("logistic", "quadratic", "images")
WIRES = ("bf16", "int8", "int4")
PRESETS = ("aws-10", "gaia", "aws-na", "geant", "exodus", "ebone")
DATASETS = (
    "mnist", "fashion_mnist", "cifar10", "tinyshakespeare", "a9a", "w8a", "mushrooms", "phishing", "ijcnn1", "covtype",
    "abalone", "cpusmall",
)  # fmt: skip
