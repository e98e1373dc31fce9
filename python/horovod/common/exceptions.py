"""The exceptions users catch."""
from typing import Optional

from horovod import _core


class HorovodInternalError(RuntimeError):
    """An operation failed because of the state of the job, not of its arguments.

    Ranks disagree, a peer was lost, the job was shut down: ``status`` says which
    (``"MISMATCH"``, ``"PEER_LOST"``, ``"SHUTDOWN"``, ...), ``scope`` what is broken
    (``"OP"`` this operation only, ``"SET"``, ``"JOB"``, ``"PROCESS"``) and ``rank`` who is
    at fault (-1: nobody).  Elastic training restores its last commit on this error.
    """
    status: str = "ABORTED"
    scope: str = "OP"
    rank: int = -1


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts has changed; elastic training starts a new round.

    ``skip_sync``: hosts were only removed, so that everybody who goes on is up to date.
    """

    def __init__(self, skip_sync: bool) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class WorkerRetired(SystemExit, RuntimeError):
    """The driver of the elastic job needs this worker no longer.  Uncaught, it ends the
    process with exit code 0."""
    status: str = "RETIRED"
    scope: str = "PROCESS"
    rank: int = -1

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = 0


def get_version_mismatch_message(name: str, version: str,
                                 installed_version: Optional[str]) -> str:
    return (f"Framework {name} installed with version {installed_version} but found "
            f"version {version}.")


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than the one Horovod was installed with."""

    def __init__(self, name: str, version: str, installed_version: Optional[str]) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


_core.set_error(HorovodInternalError)
_core.set_retired(WorkerRetired)
