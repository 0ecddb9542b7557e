#!/usr/bin/env bash
# Score a manifest on all GPUs of several machines that share a folder, one process for each GPU:
#   NODES=2 MASTER=first-machine:29400 launch/score_torchrun.sh judge --manifest pairs.parquet --out /shared/scores.parquet
# the same on each machine. On a single machine `empathy-judge score` alone takes all GPUs. The processes share nothing but
# the folder of --out: a machine that dies takes at most the parts under way with it, and the same command goes on.
# No process is started again. Also read: GPUS (processes on each machine), PYTHON.
set -euo pipefail

# Batches differ in length: without segments that grow, the free memory of a GPU falls into pieces too small for the next.
# What you set under any of its names stays (torch 2.9 reads only this one); set it to nothing where a GPU cannot do it, such
# as virtual ones and WSL
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF-${PYTORCH_ALLOC_CONF-${PYTORCH_HIP_ALLOC_CONF-expandable_segments:True}}}
python=${PYTHON:-python}
nodes=${NODES:-1}
gpus=${GPUS:-$("$python" -c 'import torch; print(torch.cuda.device_count())')} # of those that it may use
meeting=(--standalone)
if ((nodes > 1)); then
    meeting=(--nnodes "$nodes" --rdzv-backend c10d --rdzv-endpoint "${MASTER:?host:port of the first machine}")
    meeting+=(--rdzv-id "${RENDEZVOUS:-empathy-judge-score}")
    # machines may start long after each other: by default one that comes two minutes before the first fails
    meeting+=(--rdzv-conf "join_timeout=1800,read_timeout=900")
fi
exec "$python" -m torch.distributed.run "${meeting[@]}" --nproc-per-node "$gpus" --max-restarts 0 \
    --module -- empathy_judge.cli score "$@"
