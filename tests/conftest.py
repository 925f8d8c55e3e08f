import os

import torch
from hypothesis import settings

# Deadlines measure the machine, not the code; the number of examples can be raised from outside.
settings.register_profile("perron", deadline=None, max_examples=int(os.environ.get("EXAMPLES", "100")))
settings.load_profile("perron")

torch.set_num_threads(1)  # the tensors of the tests are small, and tests run side by side

# Scripts for processes, what runs the blocks of pages, and what looks at the built documentation: not tests of their own.
collect_ignore = [
    "blocks.py", "built_site.py", "checkpointing.py", "dying.py", "pacing.py", "parity.py", "same_curve.py", "surviving.py",
    "training.py", "two_levels.py",
]  # fmt: skip
