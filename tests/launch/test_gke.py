"""gke.sh: the manifest, and what kubectl and xpk are told."""

import json

import pytest

from tests.launch.stand_ins import Machine, sentence

GKE = {
    "SPADE_JOB": "big-run",
    "SPADE_IMAGE": "europe-docker.pkg.dev/p/r/spade_jax:1",
    "SPADE_ACCELERATOR": "tpu-v5p-slice",
    "SPADE_TOPOLOGY": "4x4x4",
    "SPADE_SLICES": "2",
}
MANIFEST = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: big-run
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
spec:
  failurePolicy:
    maxRestarts: 20
    rules:
      - action: FailJobSet
        onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
    - name: slice
      replicas: 2
      template:
        spec:
          parallelism: 16
          completions: 16
          backoffLimit: 0
          podFailurePolicy:
            rules:
              - action: FailJob
                onExitCodes: {containerName: trainer, operator: In, values: [2]}
          template:
            spec:
              restartPolicy: Never
              hostNetwork: true
              dnsPolicy: ClusterFirstWithHostNet
              terminationGracePeriodSeconds: 300
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: tpu-v5p-slice
                cloud.google.com/gke-tpu-topology: 4x4x4
              containers:
                - name: trainer
                  image: "europe-docker.pkg.dev/p/r/spade_jax:1"
                  command: COMMAND
                  ports: [{containerPort: 8471}, {containerPort: 8080}]
                  securityContext: {privileged: true}
                  resources: {limits: {google.com/tpu: 4}}
"""


def test_manifest(machine: Machine) -> None:
    """The command is JSON, which is YAML; Kubernetes would replace $(HOME)."""
    given = ["--config=games", "--a=two words", '--b="\\ $(HOME)', ""]
    done = machine.run("gke.sh", "manifest", *given, **GKE, SPADE_PREPARE="cp 'a b' .")
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if "command:" in line]
    _, _, words = line.partition("command: ")
    assert done.stdout.replace(words, "COMMAND") == MANIFEST
    start = "cp 'a b' . && exec python -m spade_jax.train \"$@\""
    escaped = [each.replace("$(", "$$(") for each in given]
    assert json.loads(words) == ["bash", "-c", start, "trainer", *escaped]


def test_submitting_a_manifest(machine: Machine) -> None:
    kubectl = machine.programs / "kubectl"
    kubectl.write_text('#!/bin/sh\necho "$@" >"$0.words"\ncat >"$0.manifest"\n')
    printed = machine.run("gke.sh", "manifest", "--config=games", **GKE).stdout
    assert machine.run("gke.sh", "submit", "--config=games", **GKE).returncode == 0
    assert (machine.programs / "kubectl.words").read_text() == "apply --filename=-\n"
    assert (machine.programs / "kubectl.manifest").read_text() == printed


def test_xpk(machine: Machine) -> None:
    more = {"SPADE_CLUSTER": "c", "SPADE_ZONE": "z", "SPADE_PROJECT": "p", "SPADE_TPU": "v5p-128"}
    done = machine.run("gke.sh", "xpk", "--a=two words", **GKE, **more)
    assert done.returncode == 0, done.stderr
    assert machine.calls == [
        [
            *("xpk", "workload", "create", "--workload=big-run", "--cluster=c", "--zone=z"),
            *("--project=p", "--tpu-type=v5p-128", "--num-slices=2"),
            *("--docker-image=europe-docker.pkg.dev/p/r/spade_jax:1", "--max-restarts=20"),
            *("--restart-on-exit-codes=75", "--termination-grace-period-seconds=300"),
            r"--command=python -m spade_jax.train --a=two\ words",
        ]
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["status"],
            ["get", "jobsets,pods", "--selector=jobset.sigs.k8s.io/jobset-name=big-run"],
        ),
        (
            ["logs", "1", "3"],
            [
                *("logs", "--follow", "--tail=100"),
                "--selector=jobset.sigs.k8s.io/jobset-name=big-run,jobset.sigs.k8s.io/job-index=1,"
                "batch.kubernetes.io/job-completion-index=3",
            ],
        ),
        (["delete"], ["delete", "jobset", "big-run"]),
    ],
)
def test_kubectl(machine: Machine, arguments: list[str], expected: list[str]) -> None:
    assert machine.run("gke.sh", *arguments, SPADE_JOB="big-run").returncode == 0
    assert machine.calls == [["kubectl", *expected]]


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        ([], {"SPADE_TOPOLOGY": "4x"}, "SPADE_TOPOLOGY is '4x' but must be such as 4x4x4"),
        (
            [],
            {"SPADE_CHIPS": "6"},
            "the 64 chips of SPADE_TOPOLOGY=4x4x4 are no multiple of SPADE_CHIPS=6, those of a",
        ),
        (
            ["a\nb"],
            {},
            r"the argument $'a\nb' has a line break or control character, which no flag",
        ),
    ],
)
def test_manifests_that_cannot_be(
    machine: Machine, arguments: list[str], variables: dict[str, str], message: str
) -> None:
    done = machine.run("gke.sh", "submit", *arguments, **GKE | variables)
    assert (done.returncode, machine.calls) == (2, [])
    assert sentence(done).startswith(message)


def test_a_cluster_that_refuses(machine: Machine) -> None:
    machine.answer(kubectl=[("", 4)])
    done = machine.run("gke.sh", "submit", **GKE)
    assert done.returncode == 4
    assert sentence(done) == "submitting big-run failed with exit code 4, see above"
