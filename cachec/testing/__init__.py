"""What ships for the tests of plugins and of projects that use cachec: the conformance suite, and a toy compiler."""
