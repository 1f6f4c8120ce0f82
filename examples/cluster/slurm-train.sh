#!/bin/bash
# One training on several machines: sbatch slurm-train.sh
# A machine has one task, torchrun, which starts a process for each of its GPUs. Before the time is
# over the training saves and the job is queued again; --resume auto then goes on from there.
#SBATCH --job-name=attnlab-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@180
set -euo pipefail

runs=${RUNS:-$PWD/runs}  # on a filesystem that all machines share
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
again=

srun --kill-on-bad-exit=1 torchrun \
    --nnodes="$SLURM_NNODES" \
    --nproc-per-node="${SLURM_GPUS_ON_NODE:-1}" \
    --rdzv-backend=c10d \
    --rdzv-id="$SLURM_JOB_ID" \
    --rdzv-endpoint="$first:29500" \
    -m attnlab train shakespeare-gpu data=input.txt --runs "$runs" --resume auto &
step=$!
# srun passes the signal on to torchrun, and that to its processes, which save
trap 'again=yes; kill -TERM "$step"' USR1
status=0
wait "$step" || status=$?
if [ -n "$again" ]; then  # the signal has ended the first wait, and not the training
    wait "$step" || true
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$status"
