"""Programs of the corpus have tests of their own, which the harness runs."""

collect_ignore = ["programs"]
