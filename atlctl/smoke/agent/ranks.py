"""The rank processes of one worker."""
