"""horovodrun on one machine: what it accepts, prints and returns."""
import re

import pytest

from hvdrun import HOROVODRUN, run

USAGE = "usage: horovodrun [-h] [-v] -np N [options] [NAME=VALUE ...] command [arguments ...]\n"


def test_version_is_all_it_says():
    import horovod
    done = run("--version")
    assert (done.code, done.text, done.error) == (0, horovod.__version__ + "\n", "")
    assert run("-v").text == done.text


def test_help_has_groups_defaults_and_variables():
    done = run("--help")
    assert done.code == 0 and done.text.startswith(USAGE)
    for text in ("\nhosts:\n", "\nssh:\n", "\nelastic jobs:\n", "--cycle-time-ms N",
                 "[HOROVOD_CYCLE_TIME, default: 1]"):
        assert text in done.text or text in " ".join(done.text.split())
    assert max(map(len, done.text.splitlines())) <= 120
    assert not re.search(r" $", done.text, re.M)
    assert run("-h").text == done.text


def test_check_build_has_the_known_layout():
    done = run("--check-build")
    assert done.code == 0
    lines = [re.sub(r"\[.\]", "[?]", line) for line in done.text.splitlines()]
    names = ["Available Frameworks:", "    [?] TensorFlow", "    [?] PyTorch", "    [?] MXNet", "",
             "Available Controllers:", "    [?] MPI", "    [?] Gloo", "",
             "Available Tensor Operations:", "    [?] NCCL", "    [?] DDL", "    [?] CCL",
             "    [?] MPI", "    [?] Gloo"]
    assert lines[2:] == names and lines[0].startswith("Horovod v") and lines[1] == ""
    assert "    [X] PyTorch\n" in done.text and done.text.count("    [X] Gloo\n") == 2
    assert "    [X] TensorFlow\n" in done.text and "    [ ] NCCL\n" in done.text
    assert run("-cb", "--verbose").text.startswith("\n")
    assert "\nGPU: CUDA driver none, NCCL none (0). nowhere.so was not found\n" in run(
        "-cb", "--verbose", env={"HOROVOD_CUDART_LIBRARY": "nowhere.so"}).text


def test_print_config_tells_who_set_what():
    done = run("--print-config", "--cycle-time-ms", "7", env={"HOROVOD_CACHE_CAPACITY": "9"})
    rows = {line.split()[0]: line.split() for line in done.text.splitlines()}
    assert rows["HOROVOD_CYCLE_TIME"][1:] == ["7", "1", "--cycle-time-ms"]
    assert rows["HOROVOD_CACHE_CAPACITY"][1:] == ["9", "1024", "environment"]
    assert rows["HOROVOD_FUSION_THRESHOLD"][1:] == ["128mb", "128mb", "default"]
    assert "HOROVOD_KEY" not in rows


@pytest.mark.parametrize("args, text", [
    (["-np", "2"], "the command to run is missing"),
    (["-np", "2", "A=1"], "the command to run is missing"),
    (["true"], "the following arguments are required: -np/--num-proc"),
    ([], "the following arguments are required: -np/--num-proc"),
    (["-np", "x", "true"], "argument -np/--num-proc: invalid int value: 'x'"),
    (["-np"], "argument -np/--num-proc: expected one argument"),
    (["-np", "1", "--nonsense", "true"], "unrecognized arguments: --nonsense"),
    (["-np", "1", "--fusion-treshold-mb", "3", "true"], "did you mean --fusion-threshold-mb?"),
    (["-np", "1", "--host-file=x", "true"], "did you mean --hostfile?"),
    (["-np", "1", "--no", "true"], "ambiguous option: --no could match"),
    (["-np", "1", "--gloo", "--mpi", "true"], "argument --mpi: not allowed with argument --gloo"),
    (["-np", "1", "-H", "a:1", "-hostfile", "x", "true"],
     "argument -hostfile/--hostfile: not allowed with argument -H/--hosts"),
    (["-np", "1", "--log-level", "loud", "true"], "invalid choice: 'loud'"),
    (["-np", "2", "--min-np", "3", "true"], "--min-np 3 is more than -np 2"),
    (["-np", "4", "--min-np", "1", "--max-np", "3", "true"], "-np 4 is more than --max-np 3"),
])
def test_usage_errors_end_with_2(args, text):
    done = run(*args)
    assert (done.code, done.out) == (2, b"")
    assert done.error.startswith(USAGE + "horovodrun: error: ") and text in done.error


@pytest.mark.parametrize("args, text", [
    (["-np", "0"], "num_proc=0 must be >= 1"),
    (["-np", "-1"], "num_proc=-1 must be >= 1"),
    (["-np", "1", "--fusion-threshold-mb", "-1"], "fusion_threshold_mb=-1 must be >= 0"),
    (["-np", "1", "--cycle-time-ms", "-0.5"], "cycle_time_ms=-0.5 must be >= 0"),
    (["-np", "1", "--cache-capacity=-1"], "cache_capacity=-1 must be >= 0"),
    (["-np", "1", "--autotune", "--autotune-gaussian-process-noise", "2"],
     "autotune_gaussian_process_noise=2 must be in range [0, 1]"),
    (["-np", "1", "-H", "localhost"], "Invalid host input: 'localhost'"),
    (["-np", "1", "-H", "a b:1"], "Invalid host input: 'a b:1'"),
    (["-np", "1", "-H", "-oProxyCommand=touch x:1"], "Invalid host input"),
    (["-np", "1", "-hostfile", "/nonexistent"], "/nonexistent"),
    (["-np", "3", "-H", "localhost:1"],
     "Requested more processes (3) than there are available slots (1)"),
    (["-np", "1", "--config-file", "/nonexistent"], "config file /nonexistent"),
    (["-np", "1", "--network-interface", "nosuch0"], "network interface nosuch0"),
    (["-np", "1", "--jsrun"], "Horovod did not detect an LSF job"),
    (["-np", "1", "-p", "99999"], "ssh_port=99999 must be <= 65535"),
    (["-np", "1", "--min-np", "1", "--mpi"], "elastic jobs"),
    (["-np", "1", "--min-np", "1", "--blacklist-cooldown-range", "5", "2"],
     "blacklist_cooldown_range=5 2 must not decrease"),
    (["-np", "2", "--rendezvous", "a:1"], "--nnodes"),
    (["-np", "1", "--output-filename", "/dev/null/x"], "--output-filename"),
])
def test_bad_values_end_with_1(args, text):
    done = run(*args, "true")
    assert done.code == 1 and text in done.error, done
    assert done.error.count("\n") == 1 and "Traceback" not in done.error


SHOW = ["sh", "-c", "echo $HOROVOD_RANK/$HOROVOD_SIZE $HOROVOD_HOSTNAME "
        "$HOROVOD_LOCAL_RANK/$HOROVOD_LOCAL_SIZE $HOROVOD_CROSS_RANK/$HOROVOD_CROSS_SIZE"]


@pytest.mark.parametrize("args, rows", [
    (["-np", "2"], ["0/2 localhost 0/2 0/1", "1/2 localhost 1/2 0/1"]),
    (["-np", "3", "-H", "localhost:1,127.0.0.1:2"],
     ["0/3 localhost 0/1 0/2", "1/3 127.0.0.1 0/2 1/2", "2/3 127.0.0.1 1/2 0/1"]),
    (["-np", "2", "-H", "localhost:3"], ["0/2 localhost 0/2 0/1", "1/2 localhost 1/2 0/1"]),
    (["-np", "2", "-H", "localhost:1,localhost:1"],
     ["0/2 localhost 0/2 0/1", "1/2 localhost 1/2 0/1"]),
    (["-np", "2", "-H", "127.0.0.2:1,[::1]:1"], ["0/2 127.0.0.2 0/1 0/2", "1/2 ::1 0/1 1/2"]),
])
def test_where_ranks_go(args, rows):
    done = run(*args, *SHOW)
    assert done.code == 0, done
    assert done.lines() == [f"[{i}]<stdout>:{row}" for i, row in enumerate(rows)]


def test_lsf_gives_hosts_and_slots():
    lsf = {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "localhost 1 127.0.0.1 2 "}
    done = run(*SHOW, env=lsf)
    assert done.code == 0, done
    assert [line.split()[1] for line in done.lines()] == ["localhost", "127.0.0.1", "127.0.0.1"]
    assert run("-np", "1", *SHOW, env=lsf).lines() == ["[0]<stdout>:0/1 localhost 0/1 0/1"]


def test_list_algorithms():
    done = run("--list-algorithms")
    assert done.code == 0 and re.search(r"^allreduce +\w+ ", done.text, re.M)


def test_hostfile(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# two names of this machine\n\nlocalhost slots=1\n"
                    "127.0.0.1 slots = 4 max_slots=8\n")
    done = run("-np", "2", "-hostfile", str(file), *SHOW)
    assert [line.split()[1] for line in done.lines()] == ["localhost", "127.0.0.1"]
    file.write_text("localhost slots=1\nlocalhost;touch x slots=1\n")
    done = run("-np", "2", "-hostfile", str(file), *SHOW)
    assert done.code == 1 and f"{file} line 2" in done.error


def env_of(*args, env=None, rank=0):
    done = run(*args, "env", "-0", env=env)
    assert done.code == 0, done
    text = done.out.replace(f"[{rank}]<stdout>:".encode(), b"", 1)
    return dict(item.decode("utf-8", "surrogateescape").split("=", 1)
                for item in text.split(b"\0") if b"=" in item)


def test_variables_of_a_worker():
    env = env_of("-np", "1", env={"HOROVOD_RANK": "7", "HOROVOD_SIZE": "9", "HOROVOD_KEY": "k",
                                  "HOROVOD_CYCLE_TIME": "3", "CUDA_VISIBLE_DEVICES": "1",
                                  "NCCL_SOCKET_IFNAME": "mine", "BASH_FUNC_x%%": "() { :; }"})
    assert env["HOROVOD_RANK"] == "0" and env["HOROVOD_SIZE"] == "1"
    assert "HOROVOD_KEY" not in env and env["HOROVOD_KEY_FD"] == "3"
    assert env["HOROVOD_CYCLE_TIME"] == "3" and env["CUDA_VISIBLE_DEVICES"] == "1"
    assert env["NCCL_SOCKET_IFNAME"] == "mine" and env["HOROVOD_GLOO_IFACE"] == "lo"
    assert env["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"
    assert 0 < int(env["HOROVOD_GLOO_RENDEZVOUS_PORT"]) < 65536
    assert env["HOROVOD_CONTROLLER"] == env["HOROVOD_CPU_OPERATIONS"] == "gloo"
    assert env["PYTHONUNBUFFERED"] == "1" and env["BASH_FUNC_x%%"] == "() { :; }"
    assert "HOROVOD_ELASTIC" not in env


KNOBS = {
    "--fusion-threshold-mb=32": ("HOROVOD_FUSION_THRESHOLD", "33554432"),
    "--cycle-time-ms=20": ("HOROVOD_CYCLE_TIME", "20.0"),
    "--cache-capacity=512": ("HOROVOD_CACHE_CAPACITY", "512"),
    "--hierarchical-allreduce": ("HOROVOD_HIERARCHICAL_ALLREDUCE", "1"),
    "--no-hierarchical-allgather": ("HOROVOD_HIERARCHICAL_ALLGATHER", "0"),
    "--torus-allreduce": ("HOROVOD_TORUS_ALLREDUCE", "1"),
    "--autotune": ("HOROVOD_AUTOTUNE", "1"),
    "--autotune-log-file=a.csv": ("HOROVOD_AUTOTUNE_LOG", "a.csv"),
    "--autotune-warmup-samples=1": ("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "1"),
    "--autotune-steps-per-sample=2": ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "2"),
    "--autotune-bayes-opt-max-samples=3": ("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "3"),
    "--autotune-gaussian-process-noise=0.5": ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "0.5"),
    "--timeline-filename=t.json": ("HOROVOD_TIMELINE", "t.json"),
    "--timeline-mark-cycles": ("HOROVOD_TIMELINE_MARK_CYCLES", "1"),
    "--no-stall-check": ("HOROVOD_STALL_CHECK_DISABLE", "1"),
    "--stall-check-warning-time-seconds=5": ("HOROVOD_STALL_CHECK_TIME_SECONDS", "5"),
    "--stall-check-shutdown-time-seconds=6": ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "6"),
    "--no-mpi-threads-disable": ("HOROVOD_MPI_THREADS_DISABLE", "0"),
    "--num-nccl-streams=2": ("HOROVOD_NUM_NCCL_STREAMS", "2"),
    "--thread-affinity=1": ("HOROVOD_THREAD_AFFINITY", "1"),
    "--gloo-timeout-seconds=60": ("HOROVOD_GLOO_TIMEOUT_SECONDS", "60"),
    "--log-level=INFO": ("HOROVOD_LOG_LEVEL", "INFO"),
    "--log-without-timestamp": ("HOROVOD_LOG_HIDE_TIME", "1"),
    "--tcp": ("NCCL_IB_DISABLE", "1"),
}


def test_every_option_sets_its_variable():
    env = env_of("-np", "1", *KNOBS)
    assert {name: env.get(name) for name, _ in KNOBS.values()} == dict(KNOBS.values())


def test_an_option_that_is_not_given_sets_nothing():
    env = env_of("-np", "1", "--no-autotune", "--autotune-log-file=x", "--timeline-mark-cycles",
                 env={"HOROVOD_CACHE_CAPACITY": "7"})
    assert env["HOROVOD_CACHE_CAPACITY"] == "7"
    assert not set(env) & ({name for name, _ in KNOBS.values()} - {"HOROVOD_CACHE_CAPACITY"})


def test_option_over_file_over_environment(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("params:\n  cycle_time_ms: 20\n  cache_capacity: 5\n"
                    "logging:\n  hide_timestamp: true\n")
    done = run("-np", "1", "--cycle-time-ms", "10", "--config-file", str(file), "printenv",
               "HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY", "HOROVOD_FUSION_THRESHOLD",
               env={"HOROVOD_CACHE_CAPACITY": "9", "HOROVOD_FUSION_THRESHOLD": "1"})
    assert done.text.splitlines() == ["[0]<stdout>:10.0", "[0]<stdout>:5", "[0]<stdout>:1"]
    assert "'logging.hide_timestamp' is not known" in done.error


def test_words_before_the_command_are_variables():
    done = run("-np", "1", "A.B=x y", "C=1", "--", "printenv", "A.B", "C")
    assert done.text.splitlines() == ["[0]<stdout>:x y", "[0]<stdout>:1"]
    done = run("-np", "1", "echo", "C=1")
    assert done.text == "[0]<stdout>:C=1\n"
    done = run("-np", "1", "--env", "X=1", "printenv", "X")
    assert done.text == "[0]<stdout>:1\n"


def test_words_arrive_unchanged():
    words = ["two words", "$HOME;*", "`x`", "", "--np", "-x", "'\"\\", "a\nb"]
    done = run("-np", "1", "printf", "%s|", *words)
    assert done.text == "[0]<stdout>:" + "|".join(words[:-1]) + "|a\n[0]<stdout>:b|"


def test_a_prefix_of_an_option_is_enough():
    done = run("-n", "1", "--verb", "--start-t=20", "true")
    assert done.code == 0


def test_verbose_lines_of_a_local_job():
    done = run("-np", "2", "--verbose", "sh", "-c", "exit 0", env={"SECRET": "canary"})
    lines = done.text.splitlines()
    assert lines[:3] == ["Filtering local host names.",
                         "All hosts are local, finding the interfaces with address 127.0.0.1",
                         "Local interface found lo"]
    assert lines[3] == "Starting rank 0 on localhost: sh -c exit 0"
    assert "canary" not in done.text + done.error


def test_omp_threads_are_chosen_and_said_once():
    done = run("-np", "2", "printenv", "OMP_NUM_THREADS", env={"OMP_NUM_THREADS": "3"})
    assert done.lines() == ["[0]<stdout>:3", "[1]<stdout>:3"] and done.err == b""
    import subprocess

    from hvdrun import environment
    env = environment()
    env.pop("OMP_NUM_THREADS")
    done = subprocess.run([HOROVODRUN, "-np", "64", "printenv", "OMP_NUM_THREADS"], env=env,
                          capture_output=True, text=True, timeout=60)
    assert done.stdout.count(":1\n") == 64
    assert done.stderr.count("OMP_NUM_THREADS is not set") == 1


def test_ranks_are_bound_when_there_are_more_than_cpus():
    import os
    cpus = len(os.sched_getaffinity(0))
    show = ["env", "-u", "OMP_NUM_THREADS", "nproc"]
    done = run("-np", str(2 * cpus), *show)
    assert all(line.endswith(":1") for line in done.lines())
    done = run("-np", str(2 * cpus), "--no-bind", *show)
    assert all(line.endswith(f":{cpus}") for line in done.lines())
