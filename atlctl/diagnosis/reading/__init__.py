"""One worker's log, read line by line into plain facts. Nothing is judged here."""
