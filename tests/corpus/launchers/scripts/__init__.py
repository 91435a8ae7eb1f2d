"""The training scripts of the jobs. They run in the environment of the launchers, not in this project's."""
