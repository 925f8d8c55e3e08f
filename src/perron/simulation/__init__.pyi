from . import metrics as metrics
from .history import History as History
from .node import SimulatedNode as SimulatedNode
from .simulator import Simulation as Simulation
from .simulator import simulate as simulate
