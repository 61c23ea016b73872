# shellcheck shell=bash
# Sourced by gke.sh: the manifest of a run on one or more TPU slices of a GKE cluster.

# A text as YAML takes it on one line.
yaml() {
    [[ "$1" != *[[:cntrl:]]* ]] ||
        fail "the argument $(quoted "$1") has a line break or control character, which no flag of the trainer needs; remove it"
    local text="${1//\\/\\\\}"
    text="${text//\"/\\\"}"
    printf '"%s"' "${text//\$(/\$\$(}" # Kubernetes takes $(NAME) for a variable
}

# Hosts of a slice: its chips by those of a host.
hosts() {
    [[ "$SPADE_TOPOLOGY" =~ ^[1-9][0-9]*(x[1-9][0-9]*)+$ ]] ||
        fail "SPADE_TOPOLOGY is '$SPADE_TOPOLOGY' but must be such as 4x4x4"
    local chips=$((${SPADE_TOPOLOGY//x/*})) each="${SPADE_CHIPS:-4}"
    [ $((chips % each)) = 0 ] ||
        fail "the $chips chips of SPADE_TOPOLOGY=$SPADE_TOPOLOGY are no multiple of SPADE_CHIPS=$each, those of a host"
    echo $((chips / each))
}

# manifest [flags of the trainer]: a JobSet with a Job for each slice and a Pod for each host. Exit
# code 2 is wrong usage, which fails the whole; whatever else ends a host restarts all of them.
manifest() {
    local word hosts image command='"bash", "-c"'
    hosts="$(hosts)" || exit
    image="$(yaml "$SPADE_IMAGE")" || exit
    for word in "${SPADE_PREPARE:+$SPADE_PREPARE && }exec python -m spade_jax.train \"\$@\"" trainer "$@"; do
        command+=", $(yaml "$word")" || exit
    done
    cat <<YAML
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $SPADE_JOB
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
spec:
  failurePolicy:
    maxRestarts: ${SPADE_RESTARTS:-20}
    rules:
      - action: FailJobSet
        onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
    - name: slice
      replicas: ${SPADE_SLICES:-1}
      template:
        spec:
          parallelism: $hosts
          completions: $hosts
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
              terminationGracePeriodSeconds: ${SPADE_GRACE:-300}
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: $SPADE_ACCELERATOR
                cloud.google.com/gke-tpu-topology: $SPADE_TOPOLOGY
              containers:
                - name: trainer
                  image: $image
                  command: [$command]
                  ports: [{containerPort: 8471}, {containerPort: 8080}]
                  securityContext: {privileged: true}
                  resources: {limits: {google.com/tpu: ${SPADE_CHIPS:-4}}}
YAML
}
