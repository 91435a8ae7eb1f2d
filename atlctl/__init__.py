"""atlctl: see, run, diagnose and stop distributed PyTorch training jobs."""

__version__ = "0.1.0"
