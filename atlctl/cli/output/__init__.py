"""Where the output of `exec` goes: live lines, JSON Lines, a folder, folded groups; and the closing summary."""
