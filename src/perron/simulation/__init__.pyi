from . import metrics as metrics
from .cost import Traits as Traits
from .cost import bytes_per_step as bytes_per_step
from .cost import measure_traits as measure_traits
from .history import History as History
from .node import SimulatedNode as SimulatedNode
from .simulator import Simulation as Simulation
from .simulator import simulate as simulate
