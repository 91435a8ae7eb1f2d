"""Commands that die with their client, over any stream that carries input, output and an exit status."""
