"""What theory predicts of a run, to be held against the measurement: levels, stable steps, rates, horizons."""

from perron.theory.levels import Level, around, distance_floor, noise_floor, stationary
from perron.theory.recursion import Recursion, recursion
from perron.theory.stability import Best, Stable, best_lr, rate, stable_lr, transient

__all__ = [
    "Best",
    "Level",
    "Recursion",
    "Stable",
    "around",
    "best_lr",
    "distance_floor",
    "noise_floor",
    "rate",
    "recursion",
    "stable_lr",
    "stationary",
    "transient",
]
