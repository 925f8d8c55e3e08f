"""Weights and digraphs for a goal: fast mixing, fast convergence, little noise, a slow uplink, fast links."""

from perron._registry import public_dir
from perron.design.by_rates import ChosenGraph, choose_graph
from perron.design.by_time import fastest_graph
from perron.design.designer import design
from perron.design.records import GOALS, Design, Measurement
from perron.design.time_records import FastestGraph, TimedNetwork

__all__ = [
    "GOALS",
    "ChosenGraph",
    "Design",
    "FastestGraph",
    "Measurement",
    "TimedNetwork",
    "choose_graph",
    "design",
    "fastest_graph",
]

__dir__ = public_dir(__name__)
