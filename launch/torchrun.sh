#!/usr/bin/env bash
# Train on all GPUs of this machine; processes that die are started again, three times at most, and go on from the last
# checkpoint; after bad input (exit code 2) nothing is:
#   launch/torchrun.sh --config qwen2_audio --config strategy_ddp --data.path data --run runs/first
# On several machines with a common folder for the run: the same on each, told how many they are and where they meet:
#   NODES=2 MASTER=first-machine:29400 launch/torchrun.sh ...
# Also read: GPUS (processes on each machine), RESTARTS, RESUME (auto, true or false), PYTHON.
set -uo pipefail

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
    meeting+=(--rdzv-id "${RENDEZVOUS:-empathy-judge}")
    # machines may start long after each other: by default one that comes two minutes before the first fails
    meeting+=(--rdzv-conf "join_timeout=1800,read_timeout=900")
fi
notes=$(mktemp -d) || exit 1
trap 'rm -rf "$notes"' EXIT
export EMPATHY_JUDGE_BAD_INPUT=$notes/bad_input

# torchrun would start any process again, whatever its exit code: the first that ends with 2 stops torchrun itself
# shellcheck disable=SC2016
worker='
trap : TERM INT # they reach the program too, which saves and ends; this shell waits for it
"$@"
code=$?
if ((code == 2)) && (set -o noclobber && : >"$EMPATHY_JUDGE_BAD_INPUT") 2>/dev/null; then
    kill -TERM "$PPID"
fi
exit "$code"'
"$python" -m torch.distributed.run "${meeting[@]}" --nproc-per-node "$gpus" --max-restarts "${RESTARTS:-3}" \
    --no-python -- bash -c "$worker" worker "$python" -m empathy_judge.cli train "$@" \
    --trainer.num_nodes "$nodes" --trainer.devices "$gpus" --resume "${RESUME:-auto}" &
torchrun=$!
trap 'kill -TERM "$torchrun"' TERM INT
while :; do
    wait "$torchrun"
    code=$?
    kill -0 "$torchrun" 2>/dev/null || break # a signal ends `wait`, not torchrun
done
[[ -e $EMPATHY_JUDGE_BAD_INPUT ]] && code=2
exit "$code"
