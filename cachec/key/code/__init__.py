"""What a stage's code is, as parts of a key."""
