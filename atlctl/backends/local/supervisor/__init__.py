"""The supervisor of one local job: standard library only, imports nothing of `atlctl`.

It runs from its own folder (`python -I -S`), so that it starts quickly, depends on nothing that is
installed, and can be sent to another machine as it stands.
"""
