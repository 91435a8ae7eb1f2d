"""The supervisor of one job: `boot` is its entry, `supervisor` its heart. It runs with `python -I -S`: it starts
quickly and depends on nothing that is installed.

What a client on another machine asks for is here, too: `asked` is the entry, and for a start `starting`. Each question
is one process: words in, lines of JSON out.
"""
