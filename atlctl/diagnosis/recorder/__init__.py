"""Dumps of PyTorch's flight recorder: which ranks did not join which collective."""
