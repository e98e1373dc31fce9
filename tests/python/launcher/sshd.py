"""A real sshd of its own, with its own keys, for names that only our ssh knows."""
import contextlib
import os
import pathlib
import random
import shutil
import socket
import subprocess

from hvdrun import wait_until

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
SSH = shutil.which("ssh") or "/usr/bin/ssh"


def available():
    """Whether this machine has an ssh server."""
    return os.access(SSHD, os.X_OK)


def free_port():
    """Below the range of clients: who dials such a port before somebody listens could get
    it as its own."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


class Sshd:
    """sshd at addr:port; ``env`` puts a wrapper called ssh first on PATH, for which
    nodeb, nodec and node-d are hosts at that address.  Each call of ssh is logged."""

    def __init__(self, folder, addr="127.0.0.1", port=None, within=()):
        self.folder = pathlib.Path(folder)
        self.addr, self.port = addr, port or free_port()
        self.calls = self.folder / "calls"
        self._keys()
        self._server_config()
        self._client_config()
        self.process = subprocess.Popen(
            [*within, SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=open(self.folder / "sshd.log", "w"))
        wait_until(lambda: "Server listening" in (self.folder / "sshd.log").read_text())

    def _keys(self):
        for name in ("host", "id"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
                            str(self.folder / name)], check=True)
        authorized = self.folder / "authorized"
        authorized.write_text((self.folder / "id.pub").read_text())
        authorized.chmod(0o600)
        (self.folder / "known").write_text(
            f"[{self.addr}]:{self.port} {(self.folder / 'host.pub').read_text()}")

    def _server_config(self):
        os.makedirs("/run/sshd", exist_ok=True) if os.getuid() == 0 else None
        (self.folder / "sshd_config").write_text(f"""
Port {self.port}
ListenAddress {self.addr}
HostKey {self.folder}/host
AuthorizedKeysFile {self.folder}/authorized
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
MaxStartups 100
""")

    def _client_config(self):
        (self.folder / "ssh_config").write_text(f"""
Host nodeb nodec node-d
  HostName {self.addr}
  Port {self.port}
  UserKnownHostsFile {self.folder}/known
  GlobalKnownHostsFile none
  IdentityFile {self.folder}/id
  IdentitiesOnly yes
  LogLevel ERROR
""")
        (self.folder / "bin").mkdir()
        wrapper = self.folder / "bin" / "ssh"
        wrapper.write_text(f"""#!/bin/sh
printf '%s\\n' "$@" "---" >> {self.calls}
exec {SSH} -F {self.folder}/ssh_config "$@"
""")
        wrapper.chmod(0o755)

    def env(self, **more):
        """Variables for horovodrun."""
        from hvdrun import BIN
        return dict(PATH=f"{self.folder}/bin:{BIN}:{os.environ['PATH']}", **more)

    def logged(self):
        """The words of each call of ssh."""
        text = self.calls.read_text() if self.calls.exists() else ""
        return [call.splitlines() for call in text.split("---\n") if call]

    def close(self):
        """Ends the server."""
        self.process.terminate()
        self.process.wait(20)
