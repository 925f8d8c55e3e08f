from .base import Problem as Problem
from .functional import LocalLoss as LocalLoss
from .linear import LinearModel as LinearModel
from .logistic import Logistic as Logistic
from .neural import Neural as Neural
from .quadratic import Quadratic as Quadratic
from .text import language_model as language_model
