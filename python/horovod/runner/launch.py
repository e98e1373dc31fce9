"""``horovodrun`` under the names Python code knows it by.

``python -m horovod.runner.launch`` becomes the native program; the functions below serve
code that imports them.

Imported by: programs written for Horovod 0.28 only.
"""
import json
import os
import subprocess
import sys
from typing import Any, Callable, NoReturn, Optional, Sequence

import horovod.runner as _runner
from horovod.common.advice import advised
from horovod.runner import _HorovodArgs, _native
from horovod.runner.common.util import hosts as _hosts
from horovod.runner.common.util.env import is_kubeflow_mpi

# Names of attributes that differ from the option's.
_RENAMED = {"gloo": "use_gloo", "mpi": "use_mpi", "jsrun": "use_jsrun", "tcp": "tcp_flag",
            "slots_per_host": "slots", "blacklist_cooldown_range": "cooldown_range"}


def parse_args(argv: Optional[Sequence[str]] = None) -> _HorovodArgs:
    """The arguments of horovodrun (default: of this process) as attributes.  Usage errors
    end the process with code 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help", "-v", "--version"} & set(words[:1]):
        raise SystemExit(subprocess.call([_native.launcher(), *words]))
    done = subprocess.run([_native.launcher(), "--print-args", *words],
                          stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    args: Any = _HorovodArgs()
    for name, value in json.loads(done.stdout).items():
        setattr(args, _RENAMED.get(name, name), value)
    args.nics = set(_nics(args)) or None
    args.log_with_timestamp = _log_with_timestamp(args)
    if args.num_proc is None and not args.check_build:
        _usage_error("the following arguments are required: -np/--num-proc")
    if args.config_file:
        _merge_config_file(args)
    return args


def _usage_error(text: str) -> NoReturn:
    sys.stderr.write(f"usage: horovodrun [-h] [-v] -np N [options] command ...\n"
                     f"horovodrun: error: {text}\n")
    raise SystemExit(2)


def _nics(args: Any) -> list[str]:
    given = args.network_interface + args.network_interfaces
    return [nic for text in given for nic in text.split(",") if nic]


def _log_with_timestamp(args: Any) -> Optional[bool]:
    if args.log_with_timestamp or args.no_log_hide_timestamp:
        return True
    return False if args.log_without_timestamp or args.log_hide_timestamp else None


def _merge_config_file(args: Any) -> None:
    from horovod.runner.common.util import config_parser
    try:
        import yaml
    except ImportError:
        return                          # horovodrun itself reads the file
    with open(args.config_file) as file:
        config_parser.set_args_from_config(args, yaml.safe_load(file) or {}, set())


def run_commandline() -> NoReturn:
    """Becomes horovodrun with the arguments of this process."""
    path = _native.launcher()
    os.execv(path, [path, *sys.argv[1:]])


def _run(args: Any) -> Optional[list]:
    """Runs a job: of a function its results by rank, of a command nothing.  RuntimeError
    when it fails."""
    if args.run_func:
        return _runner._run_function(args)
    outcome = _native.execute(_runner._options(args), args.command)
    if outcome.code != 0:
        raise _runner._failure(outcome)
    return None


def _run_elastic(args: Any) -> Optional[list]:
    """As ``_run`` for an elastic job."""
    return _run(args)


def gloo_built(verbose: bool = False) -> bool:
    """Whether our own controller is there."""
    try:
        import horovod._core            # noqa: F401
        return True
    except ImportError as e:
        if verbose:
            print(f"horovod._core was not built: {e}")
        return False


def mpi_built(verbose: bool = False) -> bool:
    """Whether mpirun of a known MPI is there."""
    from horovod.runner.mpi_run import mpi_available
    return mpi_available()


def is_gloo_used(use_gloo: Optional[bool] = None, use_mpi: Optional[bool] = None,
                 use_jsrun: Optional[bool] = None) -> bool:
    """Whether these flags lead to our own controller."""
    return bool(use_gloo) or (not use_mpi and not use_jsrun)


def run_controller(use_gloo: Optional[bool], gloo_run: Callable, use_mpi: Optional[bool],
                   mpi_run: Callable, use_jsrun: Optional[bool], js_run: Callable,
                   verbosity: Any) -> None:
    """Calls the one of the three that flags and what is there lead to."""
    verbose = verbosity is not None and verbosity >= 2
    in_lsf = "LSB_JOBID" in os.environ
    if use_gloo:
        if not gloo_built(verbose=verbose):
            raise ValueError("Gloo support has not been built.  If this is not expected, "
                             "reinstall Horovod with HOROVOD_WITH_GLOO=1 to debug the build "
                             "error.")
        gloo_run()
    elif use_mpi or use_jsrun:
        if not mpi_built(verbose=verbose):
            raise ValueError(advised(
                "MPI support has not been built.  If this is not expected, "
                "reinstall Horovod with HOROVOD_WITH_MPI=1 to debug the build "
                "error."))
        if use_jsrun and not in_lsf:
            raise ValueError(advised(
                "Horovod did not detect an LSF job.  The jsrun launcher can only "
                "be used in that environment. Please, pick a different launcher "
                "for other environments."))
        (js_run if use_jsrun else mpi_run)()
    elif mpi_built(verbose=verbose):
        from horovod.runner.js_run import is_jsrun_installed
        (js_run if in_lsf and is_jsrun_installed() else mpi_run)()
    elif gloo_built(verbose=verbose):
        gloo_run()
    else:
        raise ValueError("Neither MPI nor Gloo support has been built. Try reinstalling "
                         "Horovod ensuring that either MPI is installed (MPI) or CMake is "
                         "installed (Gloo).")


def _check_all_hosts_ssh_successful(host_addresses: Sequence[str],
                                    ssh_port: Optional[int] = None,
                                    ssh_identity_file: Optional[str] = None,
                                    fn_cache: Any = None) -> bool:
    """Whether ssh runs ``true`` on every host.  RuntimeError names those where it fails."""
    command = ["/etc/mpi/kubexec.sh"] if is_kubeflow_mpi() else [
        "ssh", "-o", "PasswordAuthentication=no", "-o", "BatchMode=yes", "-o",
        "ConnectTimeout=10", *(["-p", str(ssh_port)] if ssh_port else []),
        *(["-i", ssh_identity_file] if ssh_identity_file else []), "--"]
    for host in host_addresses:
        _hosts.HostInfo.from_string(f"{host}:1")        # never an option
    running = [(host, subprocess.Popen([*command, host, "true"], stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL))
               for host in host_addresses]
    failed = []
    for host, process in running:
        text = process.communicate()[0].decode("utf-8", "replace")
        if process.returncode != 0:
            failed.append(host)
            sys.stderr.write(f"ssh to host {host} failed:\n{text}\n")
    if failed:
        raise RuntimeError(advised(
            "could not connect to some hosts via ssh: " + ", ".join(failed)))
    return True


if __name__ == "__main__":
    run_commandline()
