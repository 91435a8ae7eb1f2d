"""How a line shows that the training goes on."""

from __future__ import annotations

#: A progress bar, or a number of a step, an iteration or an epoch.
PROGRESS = (
    rb"\b\d{1,9}/\d{1,9} \[[\d:]{4,9}"
    rb"|\b[Ss]tep[ =:#]{1,3}\d|\b[Ii]ter(?:ation)?[ =:#]{1,8}\d|\b[Ee]poch[ =:#\[]{1,3}\d"
)
#: Bytes at the beginning of a line in which it is looked for.
PROGRESS_HEAD = 160
