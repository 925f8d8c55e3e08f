"""Predictions for a run: stationary levels, stable steps, rates and horizons."""

from perron._registry import public_dir
from perron.theory.adaptive import effective_step
from perron.theory.constants import Constants, estimate, estimate_model
from perron.theory.horizon import Horizon, crossover
from perron.theory.levels import Linearization, StationaryLevel, distance_floor, linearize, noise_floor, stationary
from perron.theory.rate_curve import RateCurve
from perron.theory.recursion import Recursion, recursion
from perron.theory.sensitivity import Sensitivity, sensitivity
from perron.theory.stability import BestStep, StableRange, best_lr, rate, stable_lr, transient
from perron.theory.theorem import TheoremOne
from perron.theory.time_to_accuracy import (
    StepsToAccuracy,
    TimeToAccuracy,
    steps_to_accuracy,
    time_to_accuracy,
)

__all__ = [
    "BestStep",
    "Constants",
    "Horizon",
    "Linearization",
    "RateCurve",
    "Recursion",
    "Sensitivity",
    "StableRange",
    "StationaryLevel",
    "StepsToAccuracy",
    "TheoremOne",
    "TimeToAccuracy",
    "best_lr",
    "crossover",
    "distance_floor",
    "effective_step",
    "estimate",
    "estimate_model",
    "linearize",
    "noise_floor",
    "rate",
    "recursion",
    "sensitivity",
    "stable_lr",
    "stationary",
    "steps_to_accuracy",
    "time_to_accuracy",
    "transient",
]
Level, Stable, Best, around = StationaryLevel, StableRange, BestStep, linearize  # the names of version 0.1

__dir__ = public_dir(__name__)
