"""What theory predicts of a run, to be held against the measurement: levels, stable steps, rates, horizons."""

from perron.theory.horizon import Horizon, crossover
from perron.theory.levels import Level, around, distance_floor, noise_floor, stationary
from perron.theory.recursion import Recursion, recursion
from perron.theory.sensitivity import Sensitivity, sensitivity
from perron.theory.stability import Best, Stable, best_lr, rate, stable_lr, transient
from perron.theory.theorem import TheoremOne

__all__ = [
    "Best",
    "Horizon",
    "Level",
    "Recursion",
    "Sensitivity",
    "Stable",
    "TheoremOne",
    "around",
    "best_lr",
    "crossover",
    "distance_floor",
    "noise_floor",
    "rate",
    "recursion",
    "sensitivity",
    "stable_lr",
    "stationary",
    "transient",
]
