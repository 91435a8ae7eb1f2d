"""Real failed jobs under launchers other than torchrun: how they are made, and the cases."""
