"""One file per command: parse, call, render. Each has one function, `command`, registered in `cli.app`."""
