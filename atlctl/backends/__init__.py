"""Where jobs live and how their workers are reached."""
