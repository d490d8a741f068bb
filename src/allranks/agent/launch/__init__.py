"""Multi-process tests: tests that start their own ranks, and adapters for torch's and DeepSpeed's classes of them."""
