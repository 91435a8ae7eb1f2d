"""The network between the workers: who reaches whom, how fast, with what loss, and who is to blame for what is bad."""
