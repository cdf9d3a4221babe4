"""What ships for testing: the promises as suites, faults on demand."""
