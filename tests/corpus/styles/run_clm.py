"""Causal language modelling in the manner of transformers' Trainer: DDP, data loaders, evaluation, checkpoints.

Progress bars are drawn over the log lines, and rank 0 does things that the others wait for.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # mypy would read all of torch
    torch: Any
    dist: Any
    nn: Any
    DistributedDataParallel: Any
    DataLoader: Any
    DistributedSampler: Any
    runtime: Any
else:
    import runtime
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler

logger = logging.getLogger(__name__)
hf = logging.getLogger("transformers")


class Bar:
    """A progress bar as tqdm draws it: carriage returns, no line end before the next log line."""

    def __init__(self, total, desc="", show=True):
        self.total, self.desc, self.n, self.show, self.begin = total, desc, 0, show, time.time()
        self.draw()

    def draw(self):
        if not self.show:
            return
        done = 10 * self.n // self.total
        took = time.time() - self.begin
        rate = f"{self.n / took:5.2f}it/s" if self.n else "?it/s"
        head = f"{self.desc}: " if self.desc else ""
        bar = f"{100 * self.n // self.total:3d}%|{'█' * done:<10}| {self.n}/{self.total}"
        sys.stderr.write(f"\r{head}{bar} [00:{int(took):02d}<00:{int(took):02d}, {rate}]")
        sys.stderr.flush()

    def update(self):
        self.n += 1
        self.draw()

    def write(self, text):
        sys.stderr.write(f"\r{text}\n")
        self.draw()


class TextDataset:
    """Rows made up from their numbers; the vocabulary is only read, so that its file is needed."""

    def __init__(self, size, file):
        with open(file) as lines:
            self.vocab = {word.strip(): i for i, word in enumerate(lines)}
        self.rows = [{"input_ids": [i % 32, (i * 7) % 32, (i * 3) % 32], "label": i % 32} for i in range(size)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return torch.tensor(row["input_ids"]), row["label"]


def rotate():
    """What a C assertion in an extension does: one line and SIGABRT."""
    fail = ctypes.CDLL(None).__assert_fail
    fail(b"num_tokens <= kMaxTokens", b"csrc/rope_kernel.cpp", 118, b"launch_rope_forward")


class Model(nn.Module):  # type: ignore[misc]
    """With `adapter`, a layer that `forward` leaves out: its parameters never get a gradient."""

    def __init__(self, vocab=32, hidden=16, adapter=False):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.head = nn.Linear(hidden, vocab)
        self.adapter = nn.Linear(hidden, hidden) if adapter else None

    def forward(self, ids):
        return self.head(self.embed(ids).mean(1))


class Trainer:
    """The loop, with evaluation and checkpoints in between."""

    def __init__(self, args, model, train_set, eval_set):
        self.args, self.model = args, model
        self.sampler = DistributedSampler(train_set, shuffle=False)
        self.train_set = train_set
        self.loader = DataLoader(train_set, 4, sampler=self.sampler, num_workers=args.workers)
        self.eval_loader = DataLoader(eval_set, 4, sampler=DistributedSampler(eval_set, shuffle=False))
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        self.main = dist.get_rank() == 0

    def compute_metrics(self, predictions, labels):
        correct = [one == other for one, other in zip(predictions, labels, strict=False)]
        return {"accuracy": sum(correct) / len(correct), "first": predictions[0]}

    def evaluate(self, step):
        if self.main:
            hf.info("***** Running Evaluation *****")
            hf.info("  Num examples = %d", len(self.eval_loader.dataset))
        self.model.eval()
        predictions, labels = [], []
        bar = Bar(len(self.eval_loader), show=self.main)
        with torch.no_grad():
            for ids, label in self.eval_loader:
                predictions += self.model.module(ids).argmax(-1).tolist()
                labels += label.tolist()
                bar.update()
        change = runtime.fault_at(step, "eval")
        if change == "empty":
            predictions, labels = [], labels[:0]
        if change == "slow":
            hf.info("Generating %d samples for the report", 4000)
            time.sleep(18)
        metrics = self.compute_metrics(predictions, labels)
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, metrics)
        self.model.train()
        if self.main:
            print({"eval_accuracy": everyone[0]["accuracy"], "epoch": step / 8}, flush=True)

    def save(self, step):
        folder = Path(self.args.output_dir, f"checkpoint-{step}")
        if self.main:
            hf.info("Saving model checkpoint to %s", folder)
            change = runtime.fault_at(step, "save")
            if change == "pickle":
                self.model.module.on_save = lambda: folder
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(self.model.module, folder / "pytorch_model.bin")
            (folder / "pytorch_model.bin").unlink()
        dist.barrier()

    def train(self):
        if self.main:
            hf.info("***** Running training *****")
            hf.info("  Num examples = %s", f"{len(self.train_set):,}")
            hf.info("  Gradient Accumulation steps = 1")
        steps = self.args.steps
        bar = Bar(steps, show=self.main)
        step = 0
        while step < steps:
            for ids, label in self.batches():
                if step >= steps:
                    break
                runtime.mark(step)
                change = runtime.fault_at(step, "train")
                if change == "memory":
                    self.cache = bytearray(1 << 46)
                if change == "leave0":
                    sys.exit(0)
                if change == "label":
                    label = label + 32
                if change == "assert":
                    rotate()
                loss = nn.functional.cross_entropy(self.model(ids), label)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                step += 1
                bar.update()
                if self.main and step % 2 == 0:
                    bar.write(
                        str({"loss": round(loss.item(), 4), "learning_rate": self.args.lr, "epoch": round(step / 8, 2)})
                    )
                if step % 3 == 0:
                    self.evaluate(step)
                if step % 4 == 0:
                    self.save(step)
                time.sleep(self.args.pace)
        if self.main:
            sys.stderr.write("\n")
            hf.info("\n\nTraining completed. Do not forget to share your model on huggingface.co/models =)\n\n")

    def batches(self):
        if runtime.fault_at(0, "data") == "column":
            del self.train_set.rows[runtime.RANK + 4 * dist.get_world_size()]["label"]
        return self.loader


def main():
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=40)
    parser.add_argument("--pace", type=float, default=0.15)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--vocab_file", default="tokenizer/vocab.txt")
    parser.add_argument("--cache_dir", default="")
    parser.add_argument("--adapter", action="store_true")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[%(levelname)s|trainer.py:%(lineno)d] %(asctime)s >> %(message)s"))
    hf.addHandler(handler)
    hf.propagate = False
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    logger.warning(
        "Process rank: %s, device: cpu, n_gpu: 0, distributed training: True, 16-bits training: False",
        os.environ["LOCAL_RANK"],
    )
    warnings.warn(
        "`tokenizer` is deprecated and will be removed in version 5.0.0 for `Trainer.__init__`. "
        "Use `processing_class` instead.",
        FutureWarning,
        stacklevel=1,
    )
    if args.cache_dir:
        user = os.geteuid()
        if user == 0:  # root may write everywhere
            os.seteuid(65534)
        try:
            with open(Path(args.cache_dir, "datasets.lock"), "w") as lock:
                lock.write(str(os.getpid()))
        finally:
            os.seteuid(user)
    train_set = TextDataset(64 * dist.get_world_size(), args.vocab_file)
    vocab = 48 if runtime.fault_at(0, "model") == "wide" else 32
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(vocab=vocab, adapter=args.adapter))
    trainer = Trainer(args, model, train_set, TextDataset(16 * dist.get_world_size(), args.vocab_file))
    try:
        trainer.train()
    except KeyboardInterrupt:
        logger.warning("KeyboardInterrupt: saving before exit")
        raise
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if os.environ.get("CORPUS_RECORD"):
        from torch.distributed.elastic.multiprocessing.errors import record

        main = record(main)
    main()
