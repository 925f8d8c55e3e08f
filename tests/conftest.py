import os

import torch
from hypothesis import settings

# Deadlines measure the machine, not the code; the number of examples can be raised from outside.
settings.register_profile("perron", deadline=None, max_examples=int(os.environ.get("EXAMPLES", "100")))
settings.load_profile("perron")

torch.set_num_threads(1)  # the tensors of the tests are small, and tests run side by side

# Helpers of the tests and scripts that they start as processes; the built documentation is looked at by scripts/docs.
collect_ignore = ["support", "docs/built_site.py"]
