"""Runs pieces of code, each in a process that is as good as new: forked from this one, which
has imported torch but neither Lightning nor horovod, and no start-up line.

Reads [code, variables] as JSON lines from stdin and answers "ok" or a traceback.  The
function ``startup`` does what the interpreter does with our .pth file.
"""
import json
import os
import site
import sys
import sysconfig
import traceback

import torch                        # noqa: F401
import torchmetrics                 # noqa: F401

PLACE = sysconfig.get_path("platlib")


def startup():
    site.addpackage(PLACE, "horovod-startup.pth", None)


def forget():
    """torchmetrics has imported lightning_utilities; a new process would not have it."""
    for name in [n for n in sys.modules if n.startswith("lightning_utilities")]:
        del sys.modules[name]


def run(code, variables, out):
    os.environ.update(variables)
    forget()
    try:
        exec(compile(code, "<case>", "exec"), {"__name__": "__main__", "startup": startup})
        answer = "ok"
    except BaseException:
        answer = traceback.format_exc()
    out.write(json.dumps(answer) + "\n")
    out.flush()


def main():
    out = os.fdopen(os.dup(1), "w")
    del os.environ["HOROVOD_NO_STARTUP_HOOK"]       # for the start of this process only
    os.dup2(2, 1)
    found = [n for n in sys.modules if n.split(".")[0] in
             ("horovod", "lightning", "pytorch_lightning", "lightning_fabric")]
    assert not found, found
    for line in sys.stdin:
        code, variables = json.loads(line)
        child = os.fork()
        if child == 0:
            run(code, variables, out)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            out.write(json.dumps("the process died") + "\n")
            out.flush()


main()
