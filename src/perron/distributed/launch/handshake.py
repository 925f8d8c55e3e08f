"""Who may take part in a training on several machines: those who know its secret.

The store through which processes find each other asks nobody who they are. So the launcher that hosts it puts a question into it,
a number of one's own; who comes answers with HMAC-SHA256(secret, question, own question, what it brings), and is answered in the
same way. The secret itself is never sent. This keeps out accidents: a launcher of another training, an old one that still runs, a
wrong address. It does not keep out attackers, who can write into the store without coming through the handshake, and it encrypts
nothing.

    handshake/question       of the host
    handshake/knocks         a line of JSON for everybody who wants in
    handshake/answer/ID      the host's, to the one who knocked as ID
"""

from __future__ import annotations

import hmac
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Any

import torch.distributed as dist

from perron.distributed.process_group import TIMEOUT, first_line
from perron.errors import FileError, NetworkError

ENVIRONMENT_VARIABLE = "PERRON_SECRET"  # by which launchers tell their nodes, and may be told
POLL_INTERVAL = 0.02  # seconds between looks at the store
SHORTEST = 8  # characters


def read_secret(file: str | Path | None = None) -> str:
    """What is in a file that only its owner can read, or in the environment; nothing if there is none."""
    if file is None:
        told = os.environ.get(ENVIRONMENT_VARIABLE, "")
        if told and len(told) < SHORTEST:
            raise FileError(
                f"The secret in {ENVIRONMENT_VARIABLE} has {len(told)} characters; it needs {SHORTEST} or more."
            )
        return told
    path = Path(file)
    try:
        mode, text = path.stat().st_mode & 0o777, path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"Cannot read the secret in {path}: {getattr(error, 'strerror', None) or 'no text'}.") from None
    if mode & 0o077:
        raise FileError(f"Others may read the secret in {path} (mode {mode:o}): chmod 600 {path}")
    if len(text) < SHORTEST:
        raise FileError(f"The secret in {path} has {len(text)} characters; it needs {SHORTEST} or more.")
    return text


def _sealed(key: str, *parts: str) -> str:
    return hmac.new(key.encode(), json.dumps(parts).encode(), "sha256").hexdigest()


class Handshake:
    """The host's side; `look` lets in those who have come.

    Args:
        store: the launcher's, with the prefix of all keys.
        key: the secret.
        say: where those who were refused are named.
        fits: what is wrong with that which somebody brings; nothing if it fits.
    """

    def __init__(
        self, store: Any, key: str, say: Callable[[str], None], fits: Callable[[dict[str, Any]], str] = lambda _: ""
    ) -> None:
        self.store, self.say, self.fits = store, say, fits
        self._key, self._question, self._seen = key, token_hex(16), 0
        store.set("handshake/knocks", "")
        store.set("handshake/question", self._question)

    def poll(self) -> None:
        """Answer those who have knocked since the last look."""
        knocks = self.store.get("handshake/knocks").split(b"\n")[:-1]  # the last one has no end yet
        for raw in knocks[self._seen :]:
            self._seen += 1
            try:
                own, said = self._judged(raw)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                self.say(f"Refused somebody at the store, whose {len(raw)} bytes make no sense.")
                continue
            if said:
                self.say(f"Refused at the store: {said}.")
            self.store.set(f"handshake/answer/{own}", json.dumps([said, _sealed(self._key, "answer", own, said)]))

    def _judged(self, raw: bytes) -> tuple[str, str]:
        """The question of somebody who has knocked, and why it is refused; an error of any kind if it makes no sense."""
        told = json.loads(raw)
        who, own, facts, seal = (str(told[name]) for name in ("who", "own", "facts", "seal"))
        bytes.fromhex(own + seal)  # nothing else is compared, or becomes a key of the store
        if not hmac.compare_digest(seal, _sealed(self._key, "knock", self._question, own, who, facts)):
            return own[:64], f"{who[:80]!r} has another secret, or none"
        wrong = self.fits(dict(json.loads(facts)))
        return own[:64], f"{who[:80]!r}: {wrong}" if wrong else ""


def join(store: Any, key: str, who: str, facts: dict[str, Any] | None = None, timeout: float = TIMEOUT) -> None:
    """Ask to be let in; an error if one is not, or if the host does not know the secret either."""
    own, brought = token_hex(16), json.dumps(facts or {})
    try:
        question = store.get("handshake/question").decode()
        told = {"who": who, "own": own, "facts": brought}
        seal = _sealed(key, "knock", question, own, who, brought)
        store.append("handshake/knocks", json.dumps(told | {"seal": seal}) + "\n")
        deadline = time.monotonic() + timeout
        while not store.check([f"handshake/answer/{own}"]):
            if time.monotonic() > deadline:
                raise NetworkError(
                    f"{who} was not let in within {timeout:g} s: the launcher of node 0 does not answer."
                )
            time.sleep(POLL_INTERVAL)
        said, answer = json.loads(store.get(f"handshake/answer/{own}"))
    except (RuntimeError, dist.DistError, ValueError, TypeError) as error:
        if isinstance(error, NetworkError):
            raise
        raise NetworkError(f"{who} cannot reach the store: {first_line(error)}.") from None
    if said:
        raise NetworkError(f"Refused at the store: {said}. All launchers need the same secret and the same options.")
    if not hmac.compare_digest(str(answer).encode(), _sealed(key, "answer", own, "").encode()):
        raise NetworkError(f"The store does not know the secret of {who}: is it that of another training?")
