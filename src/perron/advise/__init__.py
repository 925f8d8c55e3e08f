"""The adviser: which algorithm and which step to use on a network, and what to expect."""

from perron._registry import public_dir
from perron.advise.adviser import advise
from perron.advise.records import Advice, Assessment, Goal, GradientCost, Limit, Needs, Timing

__all__ = ["Advice", "Assessment", "Goal", "GradientCost", "Limit", "Needs", "Timing", "advise"]
Fit = Assessment  # the name of version 0.1

__dir__ = public_dir(__name__)
