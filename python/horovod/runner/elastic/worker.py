"""What a worker of an elastic job is told."""
import enum


class HostUpdateResult(enum.IntFlag):
    """How the hosts have changed; of several changes the parts are or-ed."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added
