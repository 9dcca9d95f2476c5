"""The kernel reports what a command looks up and changes: seccomp user notification, without root.

``supervisor.trace`` runs a command and returns ``accesses.Accesses``. Limits: a thread that changes a path string, or
the current folder, between the report and the use by the kernel; times of files; programs that insist on io_uring;
interpreters by binfmt_misc; the namespaces of ``clone3``, unless something is
mounted there. Needs Linux 5.5, and 5.9 to hear that the last process has ended.
"""
