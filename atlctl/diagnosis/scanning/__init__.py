"""The lines that matter in gigabytes of log, found without looking at each line."""

from atlctl.diagnosis.scanning.scanner import Scanner

__all__ = ["Scanner"]
