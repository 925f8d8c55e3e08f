"""An adviser: what a network is good for, which algorithm and which step to take, and what to expect of it."""

from perron.advise.adviser import advise
from perron.advise.records import Advice, Fit, Limit, Needs

__all__ = ["Advice", "Fit", "Limit", "Needs", "advise"]
