"""``cachec audit``: run a command under strace, and hold what it did against what its key covers.

``strace`` reads the system calls, ``accesses`` makes opened, written and missed files of them, ``covering`` says what a
key covers, ``runs`` puts the runs together, and ``advice`` writes the options or the adapter that are missing.
"""
