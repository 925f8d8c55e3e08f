import os
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.nodeid import NodeId
from hypothesis import settings

# Deadlines measure the machine, not the code; the number of examples can be raised from outside.
settings.register_profile("perron", deadline=None, max_examples=int(os.environ.get("EXAMPLES", "100")))
settings.load_profile("perron")

with suppress(ModuleNotFoundError):  # scripts/release tests networks where there is no torch
    import torch

    torch.set_num_threads(1)  # the tensors of the tests are small, and tests run side by side

# Helpers of the tests and scripts that they start as processes; the built documentation is looked at by scripts/docs.
collect_ignore = ["support", "docs/built_site.py"]

# Tiers, as markers (pyproject.toml lists them), of all tests in a directory or file; other tests are marked where they are.
# `scripts/test --quick` leaves out all tiers.
TIERS = {"distributed": "processes", "report/test_report_page.py": "browser", "play": "browser"}
UNTIERED = {"test_checkpoint_manager.py", "test_process_group.py"}
HERE = Path(__file__).parent


def pytest_collection_modifyitems(config, items):
    for item in items:
        place = item.path.relative_to(HERE).as_posix() if item.path.is_relative_to(HERE) else ""
        for start, tier in TIERS.items():
            if place.startswith(start) and item.path.name not in UNTIERED:
                item.add_marker(tier)
        if "designs" in getattr(item, "fixturenames", ()):  # many, made once for all tests that look at them
            item.add_marker("slow")
            item.add_marker(pytest.mark.xdist_group("designs"))
        group = item.get_closest_marker("xdist_group")
        if group and config.getoption(
            "loadgroup", default=False
        ):  # xdist 3.8 sets item._nodeid, which pytest 9.2 ignores
            item._id = NodeId.parse(f"{item.nodeid}@{group.args[0]}")
