"""What a viewer costs: the time of an operation without one, with `horovodrun --status --watch`,
and with the requests of the dashboard once a second, in turns within one job.

    python bench/python/viewer.py RANKS [FLOATS [OPERATIONS A STEP]]
"""
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

TURNS, SECONDS = ["none", "watch", "none", "page"] * 3, 2.0


def work(path, stop, count, operations):
    """A rank of the job: steps of so many allreduces, until the file `stop` is there."""
    import horovod.numpy as hvd
    import numpy as np
    hvd.init()
    x, rows = np.ones(count, np.float32), []
    if hvd.rank() == 0:
        print("begun", flush=True)
    while True:
        start = time.monotonic()
        for _ in range(operations):
            hvd.allreduce(x, name="grad")
        rows.append((start, time.monotonic()))
        if hvd.allreduce(np.array([float(os.path.exists(stop))]), name="stop")[0] > 0:
            break
    if hvd.rank() == 0:
        with open(path, "w") as file:
            json.dump(rows, file)
    hvd.shutdown()


def get(port, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    return answer


def look(kind, port, cookie):
    """One turn; when it began and ended."""
    begin = time.monotonic()
    if kind == "watch":
        viewer = subprocess.Popen(["horovodrun", "--status", "--watch"],
                                  stdout=subprocess.DEVNULL)
        time.sleep(SECONDS)
        viewer.send_signal(signal.SIGINT)
        viewer.wait()
    while time.monotonic() - begin < SECONDS:
        if kind == "page":
            get(port, "/api/status", cookie=cookie)
            get(port, "/api/trace", cookie=cookie)
        time.sleep(0.95)
    return kind, begin, time.monotonic()


def measure(ranks, count, operations):
    with tempfile.TemporaryDirectory() as folder:
        path, stop = os.path.join(folder, "rows"), os.path.join(folder, "stop")
        job = subprocess.Popen(
            ["horovodrun", "--dashboard", "-np", str(ranks), sys.executable, __file__, "--work",
             path, stop, str(count), str(operations)], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE)
        link = next(filter(None, (re.search(rb":(\d+)/\?token=(\w+)", line)
                                  for line in job.stderr)))
        threading.Thread(target=job.stderr.read, daemon=True).start()
        next(line for line in job.stdout if b"begun" in line)
        port = int(link[1])
        entered = get(port, f"/?token={link[2].decode()}")
        cookie = entered.getheader("Set-Cookie").split(";")[0]
        turns = [look(kind, port, cookie) for kind in TURNS]
        open(stop, "w").close()
        job.wait()
        with open(path) as file:
            rows = json.load(file)
    for kind in ("none", "watch", "page"):
        times = [(end - start) / operations * 1e6 for start, end in rows
                 for k, begin, over in turns if k == kind and begin <= start and end <= over]
        print(json.dumps({"ranks": ranks, "floats": count, "viewer": kind, "steps": len(times),
                          "median_us": round(statistics.median(times), 2),
                          "mean_us": round(statistics.fmean(times), 2)}))


if __name__ == "__main__":
    if sys.argv[1] == "--work":
        work(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        numbers = [int(word) for word in sys.argv[1:]] + [2, 25000, 20][len(sys.argv) - 1:]
        measure(*numbers)
