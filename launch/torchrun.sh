#!/usr/bin/env bash
# Train on all GPUs of this machine; processes that die are started again and go on from the last checkpoint:
#   launch/torchrun.sh --config configs/qwen2_audio.yaml --config configs/strategy_ddp.yaml --data.path data --run runs/first
# On several machines with a common folder for the run: the same on each, told how many they are and where they meet:
#   NODES=2 MASTER=first-machine:29400 launch/torchrun.sh ...
# Also read: GPUS (processes on each machine), RESTARTS, RESUME (auto, true or false), PYTHON.
set -euo pipefail

python=${PYTHON:-python}
nodes=${NODES:-1}
gpus=${GPUS:-$(nvidia-smi --list-gpus | wc -l)}
meeting=(--standalone)
if ((nodes > 1)); then
    meeting=(--nnodes "$nodes" --rdzv-backend c10d --rdzv-endpoint "${MASTER:?host:port of the first machine}")
    meeting+=(--rdzv-id "${RENDEZVOUS:-empathy-judge}")
fi
exec "$python" -m torch.distributed.run "${meeting[@]}" --nproc-per-node "$gpus" --max-restarts "${RESTARTS:-100}" \
    --module -- empathy_judge.cli train "$@" \
    --trainer.num_nodes "$nodes" --trainer.devices "$gpus" --resume "${RESUME:-auto}"
