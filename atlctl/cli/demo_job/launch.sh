#!/usr/bin/env bash
# Launch script of the demo job, of the sort that training platforms run in every worker. It expects the
# platform's environment: MASTER_ADDR, MASTER_PORT, WORLD_SIZE (the number of workers) and RANK (this
# worker's index), which are not PyTorch's senses of those names. Arguments go to train.py.
#
# Like its models it keeps the worker alive after the training has ended and then exits with 0, so that
# neither the worker's life nor its exit code tells how the training went.
set -u

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

# As one's own script: what lies in site-packages is not the user's code, and never the place of an error.
cp -- "$here/train.py" train.py

export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-lo}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

"${PYTHON:-python3}" -m torch.distributed.run \
  --nnodes="$WORLD_SIZE" \
  --node-rank="$RANK" \
  --nproc-per-node=2 \
  --master-addr="$MASTER_ADDR" \
  --master-port="$MASTER_PORT" \
  --log-dir="$PWD/torchelastic" \
  "$PWD/train.py" "$@" 2>&1 | tee train.log

sleep "${ATLCTL_DEMO_HOLD:-10000}"
exit 0
