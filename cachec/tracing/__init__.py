"""The kernel reports what a command looks up and changes: seccomp user notification, without root."""
