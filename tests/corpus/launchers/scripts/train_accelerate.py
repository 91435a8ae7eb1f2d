"""Trains under `accelerate launch`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.corpus.launchers.scripts import loop

    Accelerator: Any
    InitProcessGroupKwargs: Any
else:
    import loop
    from accelerate import Accelerator, InitProcessGroupKwargs


def main() -> None:
    options = loop.read_options()
    loop.begin(int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"]))
    group = InitProcessGroupKwargs(backend="gloo", timeout=loop.START)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[group])
    loop.run(options.steps)
    accelerator.end_training()


if __name__ == "__main__":
    main()
