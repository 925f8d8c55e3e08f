"""Mutual authentication of the launchers and nodes of one training by a shared secret.

The store accepts every connection, so the launcher that hosts it publishes a random challenge. A process that wants to join sends
HMAC-SHA256(secret, challenge, its own nonce, its name and options), and the host authenticates its reply in the same way. The
secret is never sent. This excludes accidents: the launcher of another training, an old launcher that still runs, a wrong address.
It does not exclude attackers, who can write to the store without a handshake, and nothing is encrypted.

    handshake/challenge      of the host
    handshake/requests       a line of JSON for each process that wants to join
    handshake/reply/NONCE    the host's reply to the request with this nonce
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

from perron.distributed.process_group import TIMEOUT, first_line
from perron.distributed.store import STORE_ERRORS
from perron.errors import FileError, NetworkError

ENVIRONMENT_VARIABLE = "PERRON_SECRET"  # for launchers, and from launchers to their nodes
POLL_INTERVAL = 0.02  # seconds between two reads of the store
MIN_LENGTH = 8  # characters


def read_secret(file: str | Path | None = None) -> str:
    """Return the secret in a file that only its owner can read, or in the environment; empty if there is none."""
    source, text = ENVIRONMENT_VARIABLE, os.environ.get(ENVIRONMENT_VARIABLE, "")
    if file is not None:
        source, path = str(file), Path(file)
        try:
            mode, text = path.stat().st_mode & 0o777, path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "no text"
            raise FileError(f"Cannot read the secret in {path}: {reason}.") from None
        if mode & 0o077:
            raise FileError(f"Others may read the secret in {path} (mode {mode:o}): chmod 600 {path}")
    if len(text) < MIN_LENGTH and (text or file is not None):
        raise FileError(f"The secret in {source} has {len(text)} characters; it needs {MIN_LENGTH} or more.")
    return text


def _mac(secret: str, *parts: str) -> str:
    return hmac.new(secret.encode(), json.dumps(parts).encode(), "sha256").hexdigest()


class Handshake:
    """The host's side: `poll` replies to the processes that want to join.

    Args:
        store: of the launcher, with the prefix of all keys.
        secret: of this training.
        say: is called with a sentence about each process that is refused.
        conflict: returns what is wrong with the options of a process; empty if nothing is.
    """

    def __init__(
        self,
        store: Any,
        secret: str,
        say: Callable[[str], None],
        conflict: Callable[[dict[str, Any]], str] = lambda _: "",
    ) -> None:
        self.store, self.say, self.conflict = store, say, conflict
        self._secret, self._challenge, self._replied = secret, token_hex(16), 0
        store.set("handshake/requests", "")
        store.set("handshake/challenge", self._challenge)

    def poll(self) -> None:
        """Reply to the requests since the last poll."""
        requests = self.store.get("handshake/requests").split(b"\n")[:-1]  # the last line is incomplete
        for raw in requests[self._replied :]:
            self._replied += 1
            try:
                nonce, refusal = self._check(raw)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                self.say(f"Refused at the store: a malformed request of {len(raw)} bytes.")
                continue
            if refusal:
                self.say(f"Refused at the store: {refusal}.")
            reply = [refusal, _mac(self._secret, "reply", nonce, refusal)]
            self.store.set(f"handshake/reply/{nonce}", json.dumps(reply))

    def _check(self, raw: bytes) -> tuple[str, str]:
        """Return the nonce of a request, and why it is refused; a malformed one raises an error of any kind."""
        request = json.loads(raw)
        name, nonce, config, mac = (str(request[field]) for field in ("name", "nonce", "config", "mac"))
        bytes.fromhex(nonce + mac)  # nothing else is compared, or becomes a key of the store
        if not hmac.compare_digest(mac, _mac(self._secret, "request", self._challenge, nonce, name, config)):
            return nonce[:64], f"{name[:80]!r} has another secret, or none"
        wrong = self.conflict(dict(json.loads(config)))
        return nonce[:64], f"{name[:80]!r}: {wrong}" if wrong else ""


def join(store: Any, secret: str, name: str, config: dict[str, Any] | None = None, *, timeout: float = TIMEOUT) -> None:
    """Ask the host to join; an error if this process is refused, or if the host does not know the secret either."""
    nonce, text = token_hex(16), json.dumps(config or {})
    try:
        challenge = store.get("handshake/challenge").decode()
        mac = _mac(secret, "request", challenge, nonce, name, text)
        request = {"name": name, "nonce": nonce, "config": text, "mac": mac}
        store.append("handshake/requests", json.dumps(request) + "\n")
        deadline = time.monotonic() + timeout
        while not store.check([f"handshake/reply/{nonce}"]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the launcher of node 0 did not reply within {timeout:g} s")
            time.sleep(POLL_INTERVAL)
        refusal, mac = json.loads(store.get(f"handshake/reply/{nonce}"))
    except (*STORE_ERRORS, TimeoutError, ValueError, TypeError) as error:
        raise NetworkError(f"{name} cannot join through the store: {first_line(error)}.") from None
    if refusal:
        raise NetworkError(f"Refused at the store: {refusal}. All launchers need the same secret and the same options.")
    if not hmac.compare_digest(str(mac).encode(), _mac(secret, "reply", nonce, "").encode()):
        raise NetworkError(f"The store does not know the secret of {name}: does it belong to another training?")
