"""Trains with Lightning's Trainer, which starts the other ranks itself."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.corpus.launchers.scripts import loop, witness

    lightning: Any
    torch: Any
    dist: Any
    DDPStrategy: Any
    Module: Any
else:
    import lightning
    import loop
    import torch
    import torch.distributed as dist
    import witness
    from lightning.pytorch.strategies import DDPStrategy

    Module = lightning.LightningModule

SIZE = 4


class Model(Module):  # type: ignore[misc]
    """A linear layer."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.layer = torch.nn.Linear(4, 1)

    def on_train_start(self) -> None:
        loop.limit_waiting()

    def training_step(self, batch: Any, step: int) -> Any:
        loop.before_step(step)
        time.sleep(loop.STEP_SECONDS)
        loop.compute_loss(step, torch.zeros(4), batch[0])
        if step == witness.STEP and witness.armed("size_mismatch"):
            witness.record()
            dist.all_reduce(torch.ones(8))
        else:
            dist.all_reduce(torch.ones(4))
        loss = self.layer(batch).square().mean()
        loop.log.info("step %d loss %.4f", step, float(loss.detach()))
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Data(loop.Samples):
    """Single samples, which the loader puts into batches."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) / 10


def main() -> None:
    options = loop.read_options()
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    loop.begin(rank, rank, SIZE)
    children = 1 if witness.PLAN["fault"].startswith("loader_") else 0
    data = torch.utils.data.DataLoader(Data(options.steps), batch_size=1, num_workers=children)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=SIZE,
        strategy=DDPStrategy(process_group_backend="gloo", timeout=loop.START),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        use_distributed_sampler=False,
    )
    trainer.fit(Model(options.lr), data)
    loop.log.info("finished after %d steps", options.steps)


if __name__ == "__main__":
    main()
