"""Example lines of the built-in signatures, from the TOML files in this folder."""

from __future__ import annotations

import tomllib
from pathlib import Path

#: ID of the signature -> `match` (lines that it wins) and `miss` (lines that it does not win).
EXAMPLES: dict[str, dict[str, list[str]]] = {}
for _path in sorted(Path(__file__).parent.glob("examples_*.toml")):
    _tables = tomllib.loads(_path.read_text(encoding="utf-8"))
    assert not EXAMPLES.keys() & _tables.keys(), f"{_path.name} repeats {EXAMPLES.keys() & _tables.keys()}"
    EXAMPLES |= _tables

#: Output of healthy jobs. No signature may match it.
HEALTHY = """\
[rank0]: step 1200 | loss 2.113 | grad_norm 0.31 | lr 3.0e-05 | 412 samples/s
 12%|#2        | 120/1000 [00:40<04:53,  3.00it/s, loss=1.93]
2025-03-04 05:06:07,890 - INFO - trainer - saved checkpoint to /ckpt/step-1200 (Error count: 0)
2025-03-04 05:06:07.890 | INFO     | data:read:40 - skipped 3 samples after ValueError: empty text
[2025-03-04 05:06:07,890] [WARNING] [runner.py:220] Did not find NVMe offload, ignoring it
W0304 05:06:07.890000 11 torch/distributed/run.py:774] Setting OMP_NUM_THREADS environment variable
node1:100:200 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.5<0>
node1:100:200 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.
node1:100:200 [0] NCCL INFO Call to connect returned Connection refused, retrying
node1:100:200 [0] NCCL INFO comm 0x55 rank 0 nranks 8 cudaDev 0 busId 3b000 - Init COMPLETE
/opt/venv/lib/python3.11/site-packages/torch/nn/modules/conv.py:3: UserWarning: plan failed with a cudnnException
  warnings.warn("No module named 'apex', using the slow path")
wandb: Tracking run with wandb version 0.17.0
FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.
Loading checkpoint shards: 100%|##########| 7/7 [00:12<00:00]
number of skipped iterations:   0 | number of nan iterations:   0 |
validation error: 0.0412, best error: 0.0399
epoch 4: ValError: 0.0412
> finished creating GPT datasets ...
Timeout set to 1800 s, retry limit 3
I0304 05:06:07.890000 11 torch/distributed/elastic/agent/server/api.py:888] [default] worker group finished.
  File "/job/train.py", line 10, in main
    raise ValueError(f"bad sample {index}: No space left on device")
    except torch.OutOfMemoryError:
{"level": "info", "ts": 1, "msg": "probe ended with exit code 137 yesterday"}
训练完成，共 1000 步，无错误
exit code 0
rank 3 finished, killed 0 stragglers
Process group watchdog started (timeout 600 s)
0: loss=nan-safe mode is on
"""
