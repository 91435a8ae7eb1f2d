"""What is written from the command table for readers: a Markdown page and a man page for each command."""
