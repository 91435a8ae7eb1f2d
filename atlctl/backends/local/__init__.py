"""Jobs on this machine: real process groups with a registry on disk. The embedded default."""
