"""Problems: local losses with what is known about them."""

from perron.problems.local import LocalLoss
from perron.problems.logistic import Logistic
from perron.problems.neural import Neural
from perron.problems.quadratic import Quadratic

__all__ = ["LocalLoss", "Logistic", "Neural", "Quadratic"]
