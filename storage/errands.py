"""In: errands for workers, their answers, and the bytes that both name. Out: the same, for any process that can reach
the place where they are kept.

Always: an errand is claimed by one worker at a time and answered once, whatever is killed in between. Nobody needs the
same clock: whether a worker lives is seen from a count that it goes on with.

    queues/QUEUE/TICKET.request       what is asked: a line of JSON (verb, session), then the message
    queues/QUEUE/TICKET.N.claim       attempt N: the name of the worker that does it
    queues/QUEUE/TICKET.N.beat        a count which that worker raises while it is at work
    queues/QUEUE/TICKET.N.lost        attempt N was given up; the next worker begins attempt N + 1
    queues/QUEUE/TICKET.answer        the answer, whichever attempt it came from
    objects/SESSION/NAME              bytes by their SHA-256
    objects/SESSION/MOMENT.alive      when the session last showed that it goes on

A ticket begins with the priority and the time of the errand, so that in a sorted list the next one comes first.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ulid import ULID

from retune.compiler.errors import MeasureError, StoreError
from retune.storage.files import ID, new_id
from retune.storage.medium import Medium
from retune.storage.place import open_medium, unveiled

KEPT_SECONDS = 7 * 86400.0
"""A session that has shown no sign of life for so long ended without tidying up."""
SIGN_SECONDS = 3600.0
"""How often a session shows that it goes on, while it has something to do."""

_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SESSION = re.compile(ID)
_OBJECT = re.compile(r"[0-9a-f]{64}")
_SIGN = re.compile(rf"({ID})\.alive")
_UNFINISHED = re.compile(r"\.([0-9A-Z]{26})(?:-[0-9a-f-]+)?\.tmp")
"""What a worker was writing when it was killed, see `retune.storage.files`."""
_FILE = re.compile(r"(?P<ticket>\d{3}-[0-9A-Z]{26})\.(?:(?P<attempt>\d+)\.)?(?P<kind>request|claim|beat|lost|answer)")


@dataclass(frozen=True, slots=True)
class Errand:
    """An errand that this process has claimed: `attempt` counts from 0."""

    queue: str
    ticket: str
    attempt: int
    verb: str
    session: str
    message: bytes


@dataclass(slots=True)
class Standing:
    """How far an errand is. `attempt` is the one that counts now, `claimed` whether a worker has taken that one."""

    is_asked: bool = False
    is_answered: bool = False
    attempt: int = 0
    claims: frozenset[int] = frozenset()

    @property
    def claimed(self) -> bool:
        """Whether a worker has taken the present attempt."""
        return self.attempt in self.claims


class SessionObjects:
    """Bytes of one session by their SHA-256. What is read is compared with its name."""

    def __init__(self, medium: Medium, session: str) -> None:
        self._medium = medium
        self._folder = f"objects/{session}"
        self._known: set[str] = set()
        self._sign = ""
        self._shown = time.time()

    def put(self, data: bytes) -> str:
        """Keep bytes; their name. Raises: StoreError."""
        self.stay()
        name = hashlib.sha256(data).hexdigest()
        if name not in self._known:
            self._medium.create(f"{self._folder}/{name}", data)
            self._known.add(name)
        return name

    def stay(self) -> None:
        """Show, once in a while, that the session goes on; it is not swept for a week after that. Raises: StoreError.

        After a longer pause (of a notebook, or a machine that slept) what was put may be gone and is put again.
        """
        now = time.time()
        silent = abs(now - self._shown)
        if silent < SIGN_SECONDS:
            return
        if silent > KEPT_SECONDS / 2:
            self._known.clear()
        before, self._sign = self._sign, f"{self._folder}/{new_id()}.alive"
        self._medium.publish({self._sign: b""})
        self._medium.remove([before] if before else [])
        self._shown = now

    def get(self, name: str) -> bytes:
        """Bytes that were kept. Raises: StoreError when they are gone, or are not what was kept."""
        if not _OBJECT.fullmatch(name):
            raise StoreError(f"{name!r} is no name of an object")
        where = f"{self._folder}/{name}"
        try:
            data = self._medium.read(where)
        except FileNotFoundError:
            raise StoreError(f"{self._medium.where(where)} is not there any more") from None
        if hashlib.sha256(data).hexdigest() != name:
            raise StoreError(f"{self._medium.where(where)} is damaged")
        return data


class ErrandStore:
    """Errands at a place that runs and workers share: a folder, or a URL that fsspec knows."""

    def __init__(self, place: Path | str) -> None:
        """Raises: StoreError when the place cannot be used."""
        self.place = str(unveiled(place))
        self._medium = open_medium(place)

    def objects(self, session: str) -> SessionObjects:
        """The bytes of a session. Raises: StoreError for a session that cannot be one."""
        if not _SESSION.fullmatch(session):
            raise StoreError(f"{session!r} is no session")
        return SessionObjects(self._medium, session)

    def offer(self, queue: str, verb: str, session: str, message: bytes, priority: int = 1) -> str:
        """Ask for something; the ticket of the errand. Larger priorities go first. Raises: StoreError."""
        ticket = f"{max(0, min(999, 999 - priority)):03d}-{new_id()}"
        head = json.dumps({"verb": verb, "session": session}).encode()
        self._medium.publish({self._name(queue, f"{ticket}.request"): head + b"\n" + message})
        return ticket

    def standings(self, queue: str) -> Mapping[str, Standing]:
        """How far all errands of a queue are, by ticket, the next ones first. Raises: StoreError."""
        found: dict[str, Standing] = {}
        lost: dict[str, set[int]] = {}
        for path in sorted(self._medium.files(self._name(queue))):
            parts = _FILE.fullmatch(path.rpartition("/")[2])
            if parts is None:
                continue
            one = found.setdefault(parts["ticket"], Standing())
            if parts["kind"] == "request":
                one.is_asked = True
            elif parts["kind"] == "answer":
                one.is_answered = True
            elif parts["kind"] == "claim":
                one.claims |= {int(parts["attempt"])}
            elif parts["kind"] == "lost":
                lost.setdefault(parts["ticket"], set()).add(int(parts["attempt"]))
        for ticket, attempts in lost.items():
            found[ticket].attempt = max(attempts) + 1
        return found

    def claim(self, queue: str, worker: str) -> Errand | None:
        """The next errand of a queue that nobody does, now this worker's; None when there is none.

        Raises: StoreError, also for one that says nothing; it stays claimed, so the next call looks at the others.
        """
        for ticket, standing in self.standings(queue).items():
            if not standing.is_asked or standing.is_answered or standing.claimed:
                continue
            name = self._name(queue, f"{ticket}.{standing.attempt}.claim")
            if self._medium.create(name, worker.encode()):
                try:
                    data = self._medium.read(self._name(queue, f"{ticket}.request"))
                except FileNotFoundError:  # cancelled since
                    self._medium.remove([name])
                    continue
                line, _, message = data.partition(b"\n")
                try:
                    head = json.loads(line)
                    return Errand(queue, ticket, standing.attempt, str(head["verb"]), str(head["session"]), message)
                except (ValueError, KeyError, TypeError) as error:
                    where = self._medium.where(self._name(queue, f"{ticket}.request"))
                    raise StoreError(f"{where} is no errand: {type(error).__name__}: {error}") from error
        return None

    def beat(self, errand: Errand, count: int) -> None:
        """Show that this worker still does the errand. Raises: StoreError."""
        name = self._name(errand.queue, f"{errand.ticket}.{errand.attempt}.beat")
        self._medium.publish({name: str(count).encode()})

    def pulse(self, queue: str, ticket: str, attempt: int) -> bytes:
        """What the worker of an attempt has counted to; empty before its first beat. Raises: StoreError."""
        try:
            return self._medium.read(self._name(queue, f"{ticket}.{attempt}.beat"))
        except FileNotFoundError:
            return b""

    def claimant(self, queue: str, ticket: str, attempt: int) -> str:
        """The worker of an attempt. Raises: StoreError."""
        try:
            return self._medium.read(self._name(queue, f"{ticket}.{attempt}.claim")).decode(errors="replace")
        except FileNotFoundError:
            return "an unknown worker"

    def give_up(self, queue: str, ticket: str, attempt: int) -> None:
        """The worker of an attempt is lost: let another one begin. Raises: StoreError."""
        self._medium.create(self._name(queue, f"{ticket}.{attempt}.lost"), b"")

    def answer(self, errand: Errand, data: bytes) -> bool:
        """Answer an errand; False when somebody has, or nobody wants to know any more. Raises: StoreError."""
        if not self._medium.exists(self._name(errand.queue, f"{errand.ticket}.request")):
            self.forget(errand.queue, [errand.ticket])
            return False
        return self._medium.create(self._name(errand.queue, f"{errand.ticket}.answer"), data)

    def take(self, queue: str, ticket: str) -> bytes:
        """The answer to an errand, which is over with that. Raises: StoreError."""
        try:
            data = self._medium.read(self._name(queue, f"{ticket}.answer"))
        except FileNotFoundError:
            raise StoreError(f"the answer to {ticket} is not there any more") from None
        self.forget(queue, [ticket])
        return data

    def forget(self, queue: str, tickets: Iterable[str]) -> None:
        """Remove errands; workers that are at one finish it for nobody. Raises: StoreError."""
        wanted = set(tickets)
        if not wanted:
            return
        self._medium.remove([self._name(queue, f"{ticket}.request") for ticket in sorted(wanted)])
        rest = [name for name in self._medium.files(self._name(queue)) if _ticket_of(name) in wanted]
        self._medium.remove(rest)

    def end(self, session: str) -> None:
        """Remove the objects of a session. Raises: StoreError."""
        self._medium.remove(self._medium.files(f"objects/{session}"))

    def sweep(self, now: float | None = None) -> int:
        """Remove what sessions left behind that showed no sign of life for long; how many files that were.

        Raises: StoreError.
        """
        limit = (time.time() if now is None else now) - KEPT_SECONDS
        objects = self._medium.files("objects")
        signs: dict[str, float] = {}
        for name in objects:
            session = name.split("/")[1]
            signs[session] = max(signs.get(session, _time_of(session)), _sign_of(name.rpartition("/")[2]))
        old = [name for name in objects if signs[name.split("/")[1]] < limit]
        late: dict[str, bool] = {}
        for name in self._medium.files("queues"):
            begun = _UNFINISHED.fullmatch(name.rpartition("/")[2])
            ticket = _ticket_of(name)
            if _time_of(begun[1] if begun else ticket[4:]) >= limit:
                continue
            if ticket not in late:
                late[ticket] = signs.get(self._session_of(name, ticket), 0.0) < limit
            if late[ticket]:
                old.append(name)
        self._medium.remove(old)
        return len(old)

    def _session_of(self, file: str, ticket: str) -> str:
        """The session of the errand that a file belongs to; empty where nothing says so any more."""
        try:
            head = self._medium.read(f"{file.rpartition('/')[0]}/{ticket}.request").partition(b"\n")[0]
            return str(json.loads(head)["session"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return ""

    def _name(self, queue: str, file: str = "") -> str:
        if not _QUEUE.fullmatch(queue):
            raise MeasureError(f"{queue!r} cannot be the name of a device or queue: use letters, digits, . _ and -")
        return f"queues/{queue}/{file}" if file else f"queues/{queue}"


def _ticket_of(path: str) -> str:
    parts = _FILE.fullmatch(path.rpartition("/")[2])
    return parts["ticket"] if parts else ""


def _sign_of(file: str) -> float:
    """When a session showed that it goes on, if this is the name of such a sign; else long ago."""
    sign = _SIGN.fullmatch(file)
    return _time_of(sign[1]) if sign else 0.0


def _time_of(text: str) -> float:
    """When an identifier was made, in seconds since 1970; endless for what is none."""
    return ULID.from_str(text).timestamp if _SESSION.fullmatch(text) else float("inf")
