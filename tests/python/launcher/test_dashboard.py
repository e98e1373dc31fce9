"""horovodrun --dashboard: a page for one reader, and nobody else."""
import asyncio
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest
from hvdrun import HOROVODRUN, assert_gone, environment, finish, start, wait_until

# Rank 1 is slow in every step, stalls when told so, and dies when told so.
JOB = """
import os, sys, time
import numpy as np
import horovod.numpy as hvd
hvd.init()
folder = sys.argv[1]
told = lambda name: os.path.exists(os.path.join(folder, name))
def load_batch():
    if hvd.rank() == 1:
        time.sleep(0.03)
        while told("stall") and not told("die"):
            time.sleep(0.01)
        if told("die"):
            os.kill(os.getpid(), 9)
while True:
    load_batch()
    hvd.allreduce(np.ones(1000, np.float32), name="grad")
    if hvd.allreduce(np.array([float(told("stop"))]), name="stop")[0] > 0:
        break
hvd.shutdown()
"""


class Dashboard:
    """A job with its dashboard."""

    def __init__(self, folder, *options, np=2, env=None):
        self.folder = folder
        script = folder / "job.py"
        script.write_text(JOB)
        self.process = start(*options, "-np", str(np), sys.executable, str(script), str(folder),
                             env=env)
        for line in self.process.stderr:
            found = re.search(rb"dashboard: (http://127\.0\.0\.1:(\d+)/\?token=([0-9a-f]{32})) ",
                              line)
            if found:
                break
        self.link, self.port, self.token = (found[1].decode(), int(found[2]), found[3].decode())

    def get(self, path="/", method="GET", **headers):
        """(status, headers, body) of a request; headers replace those of a browser."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        headers = {"host": f"127.0.0.1:{self.port}", **headers}
        for name, value in headers.items():
            if value is not None:
                connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), body

    def enter(self):
        """The cookie that the token is exchanged for."""
        status, headers, _ = self.get(f"/?token={self.token}")
        assert status == 303 and headers["Location"] == "/"
        assert "HttpOnly" in headers["Set-Cookie"] and "SameSite=Strict" in headers["Set-Cookie"]
        return headers["Set-Cookie"].split(";")[0]

    def end(self, word="stop"):
        (self.folder / word).touch()
        return finish(self.process)


@pytest.fixture
def dashboard(tmp_path):
    made = Dashboard(tmp_path, "--dashboard")
    yield made
    if made.process.poll() is None:
        assert made.end().code == 0


def test_the_link_works_once_and_the_cookie_from_then_on(dashboard):
    assert dashboard.get()[0] == 403
    assert dashboard.get("/?token=" + "0" * 32)[0] == 403
    cookie = dashboard.enter()
    assert dashboard.get(f"/?token={dashboard.token}")[0] == 403
    status, headers, body = dashboard.get(cookie=cookie)
    assert status == 200 and b"<!doctype html>" in body and b"@NONCE@" not in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert not re.search(rb"(src|href)=\"(https?:)?//", body)
    for path in ("/api/status", "/api/trace", "/metrics"):
        assert dashboard.get(path)[0] == 403
        assert dashboard.get(path, cookie=cookie[:-1] + "x")[0] == 403
        assert dashboard.get(path, cookie=cookie)[0] == 200
    assert dashboard.get("/api/none", cookie=cookie)[0] == 404
    # Only this machine, and one listener.
    sockets = open("/proc/net/tcp").read()
    assert f"0100007F:{dashboard.port:04X} 00000000:0000 0A" in sockets
    assert f"00000000:{dashboard.port:04X} 00000000:0000 0A" not in sockets


def test_other_sites_are_refused(dashboard):
    cookie, port = dashboard.enter(), dashboard.port
    assert dashboard.get("/api/status", cookie=cookie, host=f"localhost:{port}")[0] == 200
    for headers in ({"host": f"evil.example:{port}"}, {"host": "127.0.0.1"}, {"host": None},
                    {"origin": "http://evil.example"}, {"origin": "null"},
                    {"sec_fetch_site": "cross-site"}):
        assert dashboard.get("/api/status", cookie=cookie, **headers)[0] == 403, headers
    assert dashboard.get("/api/status", method="POST", cookie=cookie)[0] == 405


def test_what_is_no_request_ends_soon_and_harms_nobody(dashboard):
    cookie = dashboard.enter()
    for noise in (b"\r\n\r\n", b"\x16\x03\x01\x02\x00" * 200 + b"\r\n\r\n",
                  b"GET / HTTP/1.1\r\nx\r\n\r\n", b"G" * 9000,
                  b"GET / HTTP/1.1\r\nCookie: a\r\nCookie: b\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", dashboard.port), timeout=30) as s:
            with contextlib.suppress(OSError):
                s.sendall(noise)
                assert b" 400 " in s.recv(1000).split(b"\n")[0]
    silent = [socket.create_connection(("127.0.0.1", dashboard.port)) for _ in range(20)]
    assert dashboard.get("/api/status", cookie=cookie)[0] == 200
    for s in silent:
        s.close()


def test_metrics_for_prometheus(tmp_path):
    file = tmp_path / "token"
    file.write_text("a-token-of-24-characters\n")
    file.chmod(0o600)
    made = Dashboard(tmp_path, "--dashboard", "--dashboard-token-file", str(file))
    key = {"authorization": "Bearer a-token-of-24-characters"}
    assert made.get("/metrics", authorization="Bearer wrong")[0] == 403

    def scrape():
        status, headers, body = made.get("/metrics", **key)
        assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
        found = dict(re.findall(r'^(\w+\{.*rank="\d".*\}) (\S+)$', body.decode(), re.M))
        return {k: float(v) for k, v in found.items()} if len(found) > 40 else None
    rows = wait_until(scrape)
    names = {k.split("{")[0] for k in rows}
    assert {"horovod_up", "horovod_operations_total", "horovod_wait_seconds_total",
            "horovod_memory_bytes"} <= names

    def counted(rows):
        return sum(v for k, v in rows.items() if k.startswith("horovod_operations_total")
                   and 'operation="allreduce"' in k)
    before = counted(rows)
    wait_until(lambda: counted(scrape() or {}) > before)
    assert made.end().code == 0
    file.chmod(0o644)                   # others can read it
    refused = subprocess.run([HOROVODRUN, "--status", "--dashboard", "--dashboard-token-file",
                              str(file)], env=environment(), capture_output=True, timeout=30)
    assert refused.returncode == 1 and b"chmod 600" in refused.stderr


def test_the_trace_shows_the_straggler_on_one_clock(dashboard):
    cookie = dashboard.enter()

    def spans():
        events = json.loads(dashboard.get("/api/trace", cookie=cookie)[2])["traceEvents"]
        return [[e for e in events if e["ph"] == "X" and e["pid"] == rank and
                 e["name"].endswith("grad")] for rank in (0, 1)]
    early, late = wait_until(lambda: (found := spans()) and len(found[0]) > 10 and found)
    assert sum(e["dur"] for e in early) / len(early) > 20_000
    assert all(e["ts"] >= 0 for e in early + late)


def test_nothing_is_left_when_the_launcher_is_killed(dashboard):
    dashboard.process.kill()
    dashboard.process.wait()
    assert_gone(dashboard.process.mark)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("np", [2, 16])
def test_in_a_browser_straggler_stall_and_death(tmp_path, np):
    import browser
    pictures = os.environ.get("HVD_TEST_PICTURES", str(tmp_path))
    made = Dashboard(tmp_path, "--dashboard", np=np, env={"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"})

    async def look():
        async with browser.browser(str(tmp_path / "profile")) as page:
            await page.call("Page.navigate", url=made.link)
            await page.until(f"document.querySelectorAll('.rank').length === {np}")
            await page.until("verdict.innerText.includes('Slowest: rank 1')")
            assert await page.value("location.search") == ""
            await page.until("past.length > 3 && trace && trace.traceEvents.length > 50")
            await page.picture(f"{pictures}/straggler-{np}.png")
            (tmp_path / "stall").touch()
            await page.until("verdict.innerText.match(/grad waits .* for rank 1/)")
            await page.until("warnings.innerText.includes('wait for the others')")
            assert await page.value("document.querySelectorAll('.rank.late').length") == 1
            await page.picture(f"{pictures}/stall-{np}.png", height=1700)
            await page.picture(f"{pictures}/phone-{np}.png", 390, 1400)
            (tmp_path / "die").touch()
            await page.until("$('lost').classList.contains('on') && "
                             "$('lost').innerText.includes('rank 1 on localhost was ended by "
                             "SIGKILL')")
            assert await page.value("document.querySelectorAll('.rank.dead').length") == 1
            await page.picture(f"{pictures}/death-{np}.png")
            assert not [e for e in page.errors if "exceptionDetails" in e], page.errors
    asyncio.run(look())
    assert finish(made.process).code == 1
