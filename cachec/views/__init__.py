"""What is seen of a cache by other eyes than a terminal's: a page, a trace, and text for Prometheus."""
