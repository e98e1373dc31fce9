"""examples/deploy: the files parse, refer to each other, and use options that exist; the scripts in
them run, with this machine in the place of a pod.  No cluster is here to run them on."""
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "examples" / "deploy"
BIN = pathlib.Path(sys.executable).parent
KINDS = {"Service": "v1", "ConfigMap": "v1", "ServiceAccount": "v1", "Job": "batch/v1",
         "StatefulSet": "apps/v1", "Role": "rbac.authorization.k8s.io/v1",
         "RoleBinding": "rbac.authorization.k8s.io/v1"}


def objects(name):
    return {f"{o['kind']} {o['metadata']['name']}": o
            for o in yaml.safe_load_all((DEPLOY / name).read_text())}


def pods(every):
    """Of everything that starts some: their labels and what they are."""
    for o in every.values():
        if "template" in o.get("spec", {}):
            template = o["spec"]["template"]
            labels = template.get("metadata", {}).get("labels", {})
            if o["kind"] == "Job":
                labels = {**labels, "job-name": o["metadata"]["name"]}
            yield labels, template["spec"]


def options_of_horovodrun(words):
    """Those before the command."""
    text = subprocess.run([BIN / "horovodrun", "--help"], capture_output=True, text=True).stdout
    known = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))
    given = [w.split("=")[0] for w in words[:words.index("python")] if w.startswith("-")]
    assert given and set(given) <= known, set(given) - known


@pytest.mark.parametrize("name", ["kubernetes-static.yaml", "kubernetes-elastic.yaml"])
def test_objects_of_kubernetes_fit_together(name):
    every = objects(name)
    for o in every.values():
        assert o["apiVersion"] == KINDS[o["kind"]], o
        if o["kind"] == "Service":
            assert any(o["spec"]["selector"].items() <= labels.items() for labels, _ in pods(every))
        if o["kind"] == "StatefulSet":
            assert o["spec"]["selector"]["matchLabels"].items() <= \
                o["spec"]["template"]["metadata"]["labels"].items()
            assert f"Service {o['spec']['serviceName']}" in every
    for _, pod in pods(every):
        volumes = {v["name"]: v for v in pod.get("volumes", [])}
        for container in pod["containers"]:
            assert {m["name"] for m in container.get("volumeMounts", [])} == set(volumes)
        for volume in volumes.values():
            if "configMap" in volume:
                assert f"ConfigMap {volume['configMap']['name']}" in every
        if "serviceAccountName" in pod:
            assert f"ServiceAccount {pod['serviceAccountName']}" in every


def test_the_static_command():
    every = objects("kubernetes-static.yaml")
    job = every["Job train"]["spec"]
    script = job["template"]["spec"]["containers"][0]["args"][0]
    words = shlex.split(script[script.index("horovodrun"):].replace("\\\n", " "))
    options_of_horovodrun(words)
    assert int(words[words.index("--nnodes") + 1]) == job["completions"] == job["parallelism"]
    place = words[words.index("--rendezvous") + 1]
    assert place.split(":")[0] == "train-0.train"
    assert job["template"]["spec"]["subdomain"] == "train"
    assert subprocess.run(["sh", "-n", "-c", script]).returncode == 0
    assert (ROOT / words[-1].lstrip("/")).exists()


def test_the_elastic_command_and_its_scripts(tmp_path):
    every = objects("kubernetes-elastic.yaml")
    launcher = every["Job train-launcher"]["spec"]["template"]["spec"]["containers"][0]
    options_of_horovodrun(launcher["command"])
    assert (ROOT / launcher["command"][-1].lstrip("/")).exists()
    # The only program that horovodrun takes in the place of ssh.
    source = "".join(p.read_text() for p in (ROOT / "src/launch").glob("settings*"))
    assert f'"{launcher["env"][0]["value"]}"' in source
    assert launcher["volumeMounts"][0]["mountPath"] == "/etc/mpi"
    # A kubectl that knows two pods, one on its way out, and enters this machine.
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\nif [ "$1" = get ]; then\n'
                       'echo "train-worker-0   1/1   Running       0   5m"\n'
                       'echo "train-worker-1   1/1   Terminating   0   5m"\n'
                       'else [ "$1 $2 $4" = "exec -i --" ] || exit 9; shift 4; exec "$@"; fi\n')
    kubectl.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    def script(name, *words, stdin=""):
        return subprocess.run(["sh", "-c", every["ConfigMap train-scripts"]["data"][name], name,
                               *words], env=env, input=stdin, capture_output=True, text=True)
    assert script("discover.sh").stdout == "train-worker-0:2\n"
    done = script("kubexec.sh", "train-worker-0",
                  "exec /bin/sh -c 'test -x /bin/cat && exec /bin/cat; exec false'", stdin="a key")
    assert done.stdout == "a key", done


def test_the_batch_script():
    text = (DEPLOY / "slurm.sbatch").read_text()
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    assert all(re.match(r"#SBATCH --[\w-]+=\S+$", line) for line in text.splitlines()
               if line.startswith("#SBATCH"))


def test_the_image():
    lines = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text()).splitlines()
    words = [shlex.split(line) for line in lines if line.strip() and not line.startswith("#")]
    assert {w[0] for w in words} <= {"FROM", "ARG", "RUN", "COPY", "USER", "WORKDIR", "CMD"}
    for w in words:
        if w[0] == "COPY" and not w[1].startswith("dist/"):
            assert (ROOT / w[1]).exists(), w
