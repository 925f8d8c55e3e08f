"""What can be known about a study before it runs: whether its networks can be built, and whether they suit the algorithms."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence

from perron.clock import Clock
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.studies.run import Run


def check_networks(runs: Sequence[Run]) -> None:
    """Build every network and clock, and check that networks have what the algorithms need, and clocks their links.

    Raises:
        PerronError: with the runs that would fail, and why.
    """
    networks: dict[str, Network | PerronError] = {}
    clocks: dict[str, Clock | None] = {}
    refused: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps([run.topology, run.topology_options, run.nodes, run.weights, run.network_seed])
        try:
            if key not in networks:
                networks[key] = _network(run)
            network = networks[key]
            if isinstance(network, PerronError):
                raise network
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they are for the run
                run.build_algorithm().check(network)
            timed = json.dumps(run.clock)
            if timed not in clocks:
                clocks[timed] = run.build_clock()
            if clock := clocks[timed]:
                clock.start(run.build_algorithm(), network.mixing, dim=1, rounds=run.rounds).advance(0)
        except PerronError as error:
            refused.setdefault(str(error), []).append(run)
    if refused:
        count = sum(map(len, refused.values()))
        reasons = [
            f"{own[0]}{f' and {len(own) - 1} more' if len(own) > 1 else ''}: {why}" for why, own in refused.items()
        ]
        raise PerronError(f"{count} of {len(runs)} runs cannot work. {' '.join(reasons)}")


def _network(run: Run) -> Network | PerronError:
    try:
        return Network(run.mixing())
    except PerronError as error:
        return error
