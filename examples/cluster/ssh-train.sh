#!/bin/bash
# One training on this machine and others by ssh:
#   bash ssh-train.sh HOST... -- tiny steps=2000
# Each runs torchrun, which meets the others here. The folder of this command must be shared, with
# attnlab in the same place. After Ctrl-C or a lost machine the same line resumes.
set -euo pipefail

hosts=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do hosts+=("$1"); shift; done
[ $# -gt 1 ] || { echo "usage: $0 HOST... -- PRESET KEY=VALUE ..." >&2; exit 2; }
shift

address=$(hostname -I | awk '{ print $1 }')
path=$(dirname "$(command -v torchrun)")
there="cd $(printf %q "$PWD") && PATH=$(printf %q "$path"):\$PATH exec"
words=(torchrun "--nnodes=$((${#hosts[@]} + 1))" "--nproc-per-node=${PROCESSES:-1}"
    "--rdzv-backend=c10d" "--rdzv-id=attnlab" "--rdzv-endpoint=$address:${PORT:-29500}"
    -m attnlab train "$@" --resume auto)

# -tt: when this script ends, the line to a machine does, and what runs there
for host in "${hosts[@]}"; do
    ssh -tt "$host" "$there $(printf '%q ' "${words[@]}")" </dev/null &
done
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
"${words[@]}"
wait
