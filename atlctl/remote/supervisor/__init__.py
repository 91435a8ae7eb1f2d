"""The supervisor of one job: standard library only, Python 3.8, imports nothing of `atlctl`.

It runs from its own folder (`python -I -S`), so that it starts quickly, depends on nothing that is
installed, and can be sent to another machine as it stands: `boot` is its entry, `supervisor` its heart.

What a client on another machine asks for is here, too: `asked` is the entry, `starting` the dialogue of a start. Each
question is one process: words in, lines of JSON out.
"""
