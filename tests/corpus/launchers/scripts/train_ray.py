"""Trains with Ray Train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.corpus.launchers.scripts import loop

    ray: Any
    train: Any
    ScalingConfig: Any
    TorchConfig: Any
    TorchTrainer: Any
else:
    import loop
    import ray
    from ray import train
    from ray.train import ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer


def train_func(settings: dict[str, int]) -> None:
    here = train.get_context()
    loop.begin(here.get_world_rank(), here.get_local_rank(), here.get_world_size())
    loop.run(settings["steps"])


def main() -> None:
    options = loop.read_options()
    ray.init(num_cpus=5, include_dashboard=False, object_store_memory=100_000_000)
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"steps": options.steps},
        scaling_config=ScalingConfig(num_workers=4, use_gpu=False),
        torch_config=TorchConfig(backend="gloo", timeout_s=int(loop.START.total_seconds())),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
