"""What another account of the machine tries while a run works: a program that becomes that account, takes every step of
the attack, and prints what came of each as JSON.

It uses the standard library alone. Standard input says who attacks, `account`, and what: the account `uid`, the `port`
of its server, which an attacker finds among those in /proc/net/tcp, the `routes` there, the `pids` and `folders` of the
run. Without `routes` only the port is taken.
"""

import base64
import codecs
import http.client
import json
import os
import pwd
import re
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

WEBSOCKETS = ("/api/events/in", "/api/events/out", "/api/logs/out", "/api/task_runs/subscriptions/scheduled")
PUBLIC = {"GET /api/health", "GET /api/ready"}
FILTER = "/api/flow_runs/filter"
BLOCK = "00000000-0000-4000-8000-000000000000"
PICKLE = {"storage_key": "r", "serializer": {"type": "pickle"}, "storage_block_id": BLOCK}
STATE = {"type": "COMPLETED", "force": True, "data": PICKLE}


def become(name: str) -> None:
    """Give up the rights of root for good."""
    for codec in ("ascii", "latin-1", "idna"):  # the account may not read Python's own files
        codecs.lookup(codec)
    account = pwd.getpwnam(name)
    os.setgroups([])
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)


def ports_of(uid: int) -> Iterator[int]:
    """The ports of the loopback address at which processes of an account listen: everybody may read them."""
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, _, state, _, _, _, owner, *_ = line.split()
        if state == "0A" and local.startswith("0100007F") and int(owner) == uid:
            yield int(local.partition(":")[2], 16)


def status(port: int, method: str, path: str, body: Any = None, **headers: str) -> int:
    """The status of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json", **headers})
        return connection.getresponse().status
    finally:
        connection.close()


def tried(step: Callable[[], object]) -> str:
    """What came of a step: its result, or the error that refused it."""
    try:
        return repr(step())
    except OSError as error:
        return type(error).__name__


def websocket(port: int, path: str, protocol: str | None, token: str | None) -> str:
    """How a websocket is closed, by its handshake or by a frame; else what it sends."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        asked = f"Sec-WebSocket-Protocol: {protocol}\r\n" if protocol else ""
        key = base64.b64encode(bytes(16)).decode()
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n{asked}\r\n".encode()
        )
        stream = connection.makefile("rb")
        code = int(stream.readline().split()[1])
        while stream.readline().strip():
            continue
        if code != 101:
            return f"status {code}"
        data = json.dumps({"type": "auth", "token": token}).encode()
        connection.sendall(bytes([0x81, 0x80 | len(data), 0, 0, 0, 0]) + data)  # a masked frame of text, by zeros
        opcode, size = stream.read(2) or (0, 0)
        payload = stream.read(size & 0x7F)
        if opcode & 0x0F == 8:
            return f"closed {struct.unpack('>H', payload[:2])[0]}"
        return payload.decode()


def bind(port: int, host: str, *options: int) -> str:
    """Listen where the server does."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as squatter:
        for option in options:
            squatter.setsockopt(socket.SOL_SOCKET, option, 1)
        squatter.bind((host, port))
        squatter.listen()
        return "listens"


def squat(port: int) -> dict[str, str]:
    """Take the server's port, in all ways."""
    ways = {"": (), " reuse": (socket.SO_REUSEADDR,), " share": (socket.SO_REUSEADDR, socket.SO_REUSEPORT)}
    return {
        f"bind {host}{name}": tried(partial(bind, port, host, *options))
        for host in ("127.0.0.1", "0.0.0.0", "::")
        for name, options in ways.items()
    }


def read(place: Path) -> object:
    """What a file begins with, or what is in a folder."""
    if place.is_dir():
        return sorted(os.listdir(place))
    with place.open("rb") as file:
        return file.read(1)


def attack(request: dict[str, Any]) -> dict[str, str]:
    """Every step: what came of it."""
    port = request["port"]
    assert port in ports_of(request["uid"])
    found = squat(port)
    for pid in request["pids"]:
        command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
        found[f"login in the command of {pid}"] = repr(re.findall(r"retune:\S{20,}", command))
        for name in ("environ", "mem", "fd", "maps"):
            found[f"{name} of {pid}"] = tried(partial(read, Path(f"/proc/{pid}/{name}")))
    for folder in request["folders"]:
        found[f"read {folder}"] = tried(partial(read, Path(folder)))
        found[f"write {folder}"] = tried(partial(Path(folder, "logging.yml").write_text, "x"))
    for route in request["routes"]:
        method, _, path = route.partition(" ")
        path = re.sub(r"\{\w+\}", BLOCK, path)
        found[route] = str(status(port, method, path, STATE if method != "GET" else None))
    wrong = base64.b64encode(b"retune:guess").decode()
    for login in (f"Basic {wrong}", "Basic ", "Basic !", "Bearer retune:guess"):
        found[f"filter with {login}"] = str(status(port, "POST", FILTER, {}, Authorization=login))
    for host in ("x/api/health", "x/api/health?"):
        found[f"filter of {host}"] = str(status(port, "POST", FILTER, {}, Host=host))
    for path in ("/api/health/../flow_runs/filter", "/api//flow_runs/filter", f"{FILTER}/health"):
        found[f"filter at {path}"] = str(status(port, "POST", path, {}))
    for path in WEBSOCKETS:
        for protocol in (None, "prefect"):
            for token in (None, "retune:guess"):
                found[f"websocket {path} {protocol} {token}"] = websocket(port, path, protocol, token)
    return found


if __name__ == "__main__":
    REQUEST = json.load(sys.stdin)
    if REQUEST["account"]:
        become(REQUEST["account"])
    json.dump(attack(REQUEST) if "routes" in REQUEST else squat(REQUEST["port"]), sys.stdout)
