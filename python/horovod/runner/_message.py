"""What travels between ``horovod.run`` and its workers: a line of JSON, then bytes.

The line holds the number of bytes and their SHA-256, which is checked before anything is
unpickled: a message that was cut or changed is refused.
"""
import hashlib
import json
import os
from typing import Any

LIMIT = 1 << 34                 # 16 GiB: beyond any sensible function or result


def pack(head: dict, body: bytes) -> bytes:
    """The message, ready to be written."""
    head = dict(head, bytes=len(body), sha256=hashlib.sha256(body).hexdigest())
    return json.dumps(head).encode() + b"\n" + body


def unpack(data: bytes) -> tuple[dict, bytes]:
    """Head and body.  ValueError: not a whole message."""
    line, newline, body = data.partition(b"\n")
    if not newline:
        raise ValueError(f"message without a head ({len(data)} bytes)")
    head = json.loads(line)
    if head["bytes"] != len(body) or head["bytes"] > LIMIT:
        raise ValueError(f"message of {len(body)} bytes instead of {head['bytes']}")
    if hashlib.sha256(body).hexdigest() != head["sha256"]:
        raise ValueError("message was changed on its way")
    return head, body


def read_all(fd: int) -> bytes:
    """Everything until the end of the descriptor, which is closed."""
    with os.fdopen(fd, "rb", closefd=True) as file:
        return file.read()


def write_all(fd: int, data: Any) -> None:
    """Everything, and closes the descriptor."""
    with os.fdopen(fd, "wb", closefd=True) as file:
        file.write(data)
