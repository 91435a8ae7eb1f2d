"""The recorder: follows a job's logs, states and events to disk, and freezes what a failed worker left behind."""
