"""Starts horovodrun without a compiled library of Horovod.

It would ask that library whether Gloo is built in; the launcher itself needs none, and the ranks use Gloo of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    launch: Any
else:
    from horovod.runner import launch

if __name__ == "__main__":
    launch.gloo_built = lambda verbose=False: True
    launch.run_commandline()
