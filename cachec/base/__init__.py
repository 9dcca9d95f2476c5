"""What everything stands on: raw files, hashing, logs, installed wheels."""
