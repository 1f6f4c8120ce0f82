#!/bin/bash
# A comparison on a Ray cluster of several machines: sbatch slurm-ray.sh
# Ray starts on the first machine, the others join, and the command runs on the first. Submitted
# again, the same script goes on with what is not finished.
#SBATCH --job-name=attnlab-compare
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
set -euo pipefail

runs=${RUNS:-$PWD/runs}  # on a filesystem that all machines share
port=${PORT:-6379}
cpus=${SLURM_CPUS_PER_TASK:-1}
gpus=${SLURM_GPUS_ON_NODE:-0}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
address=$(getent ahostsv4 "$first" | awk 'NR == 1 { print $1 }'):$port
export OMP_NUM_THREADS=1

# Ray takes the cores of the job, and not all that a machine has
srun --nodes=1 --ntasks=1 --nodelist="$first" --overlap \
    ray start --head --node-ip-address="${address%:*}" --port="$port" \
    --num-cpus="$cpus" --num-gpus="$gpus" --block &
until (: <>"/dev/tcp/${address%:*}/$port") 2>/dev/null; do sleep 1; done  # until it listens
if [ "$SLURM_NNODES" -gt 1 ]; then
    srun --nodes="$((SLURM_NNODES - 1))" --ntasks="$((SLURM_NNODES - 1))" --exclude="$first" \
        ray start --address="$address" --num-cpus="$cpus" --num-gpus="$gpus" --block &
fi

# four small trainings share a GPU; Ray gives them out as machines join
srun --nodes=1 --ntasks=1 --nodelist="$first" --overlap \
    attnlab compare lab seeds=8 --on ray --address "$address" --processes 4 --runs "$runs"
