from . import augment as augment
from . import models as models
from . import partition as partition
from .datasets import Images as Images
from .datasets import cache as cache
from .datasets import find as find
from .datasets import load as load
from .download import fetch as fetch
