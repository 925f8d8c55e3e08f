from .logger import Log as Log
