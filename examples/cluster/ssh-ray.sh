#!/bin/bash
# A Ray cluster of this machine and others by ssh, as long as a command runs:
#   bash ssh-ray.sh HOST... -- attnlab audit hf:all --out rows.jsonl
# The folder of this command must be shared, with attnlab in the same place; nothing else is needed.
set -euo pipefail

hosts=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do hosts+=("$1"); shift; done
[ $# -gt 1 ] || { echo "usage: $0 HOST... -- attnlab VERB ..." >&2; exit 2; }
shift

address=$(hostname -I | awk '{ print $1 }'):${PORT:-6379}
path=$(dirname "$(command -v ray)")
there="cd $(printf %q "$PWD") && PATH=$(printf %q "$path"):\$PATH"

# `ray stop` ends all of Ray that this person has started on a machine
stop() {
    ray stop
    for host in "${hosts[@]}"; do ssh "$host" "$there ray stop" || true; done
} >/dev/null 2>&1
trap stop EXIT

ray start --head --node-ip-address="${address%:*}" --port="${address##*:}" >/dev/null
for host in "${hosts[@]}"; do ssh "$host" "$there ray start --address=$address" >/dev/null; done
"$@" --on ray --address "$address"
